"""Bugs that are seeded in the scripts, one at a time: the simulation must find each of them."""

from dataclasses import dataclass

from tests.simulation.server import SimulatedServer


@dataclass(frozen=True, slots=True)
class Bug:
    """A change of the linked text of scripts. `seeds`: within so many one must find it. `of`: only seeds that have this
    remainder modulo 64 play what it breaks, and are tried."""

    text: str
    becomes: str
    seeds: int
    finds: str
    """A part of what is reported."""
    of: int | None = None

    def tried(self, at_least: int = 0) -> range:
        """The seeds of which one must find it."""
        most = max(self.seeds, at_least)
        return range(most) if self.of is None else range(self.of, most, 64)


BUGS = {
    "LEASE_NUMBER_NOT_COMPARED": Bug(
        " or newest_number ~= numbers[n] and tonumber(newest_number) ~= tonumber(numbers[n])", "", 5000, "was taken"
    ),
    "LEASE_END_NOT_COMPARED": Bug("      or some_ended and has_ended(id, now) then", "      then", 2000, "was taken"),
    "LOCK_NOT_LOOKED_AT": Bug(
        "  if lasts == 'expired' or state and not (lasts == 'started' and begun) then return {'clash', holder} end\n",
        "", 500, "has the lock",
    ),
    "LOCK_BEFORE_ITS_OWN_ID": Bug(
        "if redis.call('EXISTS', tasks .. id) == 1 then return {'exists', id} end",
        "if string.find(redis.call('GET', lock) or id, id, 1, true) and redis.call('EXISTS', tasks .. id) == 1 then\n"
        "  return {'exists', id}\nend", 5000, "it is there itself", of=50,
    ),
    "LOCK_OUTLASTS_ITS_TASK": Bug(
        "if lasts == 'expired' or state and not (lasts == 'started' and begun) then return",
        "if true then return", 5000, "does not hold its lock",
    ),
    "LOCK_OUTLASTS_ITS_LAST_LEASE": Bug(
        "local is_over = score and state", "local is_over = false and state", 10000, "does not hold its lock"
    ),
    "REPLACED_BEHIND_A_MOVE": Bug(" + (number(task[9]) or 0) > 0", " > 0", 5000, "behind a move"),
    "LEASES_STAY": Bug("  call_sliced('ZREM', leases, ended)\n", "", 100, "has a lease in"),
    "ENQUEUE_WITHOUT_NOTE": Bug(
        "local is_again = note and not redis.call('SET', note, '', 'NX', 'PX', '10000')", "local is_again = false",
        20000, "",
    ),
    "COMMIT_NOT_COUNTED": Bug("  redis.call('HINCRBY', counters, outcome, total)\n", "", 100, "entered orders/"),
    "MOVED_AND_STILL_PENDING": Bug("end_leases(ids, ended)\n", "", 200, "orders/"),
    "RECOVERED_AND_STILL_PENDING": Bug("  redis.call('ZREM', pending, unpack(expired))\n", "", 500, ""),
    "EXPIRY_NOT_COUNTED": Bug(
        "'expiries', expiries, 'retry_count', attempts, 'more', 1", "'expiries', expiries, 'more', 1", 500,
        "attempts spent",
    ),
    "RELEASE_SPENDS_AN_ATTEMPT": Bug(
        "    if delay == '!' then redis.call('HSET', key,",
        "    if delay == '!' then redis.call('HSET', key, 'retry_count', 1,", 500, "attempts spent",
    ),
    "RECOVERED_TO_THE_END": Bug(
        "add_waiting(waiting, {number(task[4]) or now, id}, config.is_partitioned)",
        "add_waiting(waiting, {number(task[4]) + 100000, id}, config.is_partitioned)", 2000, "overtook",
    ),
    "RELEASED_TO_THE_END": Bug(
        "add_waiting(waiting, {number(task[2]) or now, id})", "add_waiting(waiting, {number(task[2]) + 100000, id})",
        2000, "overtook",
    ),
    "FULL_TARGET_IGNORED": Bug(
        "local capacity = over == '1' and math.huge or capacity_left(to_settings, to_waiting, to_scheduled)",
        "local capacity = math.huge", 2000, "whose max_size is",
    ),
    "FULL_QUEUE_IGNORED": Bug(
        "local capacity, arrived = capacity_left(settings, waiting, scheduled), redis.call('GET', arrival)",
        "local capacity, arrived = math.huge, redis.call('GET', arrival)", 500, "whose max_size is",
    ),
    "SINGLE_ENQUEUE_INTO_NO_SET": Bug(
        "  redis.call('ZADD', waiting, last, id)\n  redis.call('HSET'",
        "  redis.call('HSET'", 500, "",
    ),
    "LIMIT_OF_KEYS_IGNORED": Bug(
        "counts_leases and limits.key_inflight - (tonumber(inflight) or 0) or math.huge", "math.huge", 5000,
        "whose key_inflight is",
    ),
    "KEY_STAYS_TAKEN": Bug(
        "  if #gone > 0 then redis.call('HDEL', prefix .. 'inflight', unpack(gone)) end\n", "", 5000,
        "though it could begin",
    ),
    "FAILURE_KEEPS_ITS_KEY": Bug(
        "end_leases(ids, live, config.key_inflight > 0)", "end_leases(ids, live, false)", 50_000, "left over", of=49,
    ),
    "REQUEUED_AND_STILL_DEAD": Bug(
        "  insert(set, score, id)\n  redis.call('ZREM', dead, id)\n  leave_group",
        "  insert(set, score, id)\n  leave_group", 2000, "has no hash",
    ),
    "REQUEUED_THOUGH_NOT_DEAD": Bug(
        "if not is_dead then return exists and 'not_dead' or 'gone' end", "if not exists then return 'gone' end", 2000,
        "was requeued",
    ),
    "REQUEUE_KEEPS_ATTEMPTS": Bug(
        "'retry_count', 0, 'place', place, 'expires_in_ms'", "'place', place, 'expires_in_ms'", 2000, "attempts spent",
    ),
    "RUN_NOW_STAYS_SCHEDULED": Bug(
        "  insert(set, score, id)\n  redis.call('ZREM', scheduled, id)\n  moved",
        "  insert(set, score, id)\n  moved", 2000, "",
    ),
    "DELETED_AFTER_ITS_LEASE": Bug(
        "if not lease_end or tonumber(lease_end) <= now then return 'not_reserved' end",
        "if not lease_end then return 'not_reserved' end", 2000, "a delete of",
    ),
    "POPPED_THOUGH_CANCELLED": Bug(
        "is_unfit(id, is_damaged, task[6], task[5], task[8], task[9], now, config) then",
        "is_unfit(id, is_damaged, task[6], task[5], task[8], false, now, config) then", 20_000, "was popped",
    ),
    "PAUSE_IGNORED": Bug("at_most = config.paused and 0 or", "at_most = false and 0 or", 2000, "is paused"),
    "TOKENS_NOT_PAID": Bug("  read.level = read.level - count * read.interval\n", "", 500, "beyond its rate"),
    "TOKEN_OF_BEGUN_TASK_RETURNED": Bug(
        "  if delay == '' or unbegun_delay then\n    unbegun", "  if true then\n    unbegun", 2000, "beyond its rate",
    ),
    "PROMOTED_LATE": Bug(
        "if due < now + 1 then promoted, slice", "if due < now - 2000 then promoted, slice", 500,
        "though it could begin",
    ),
    "HOPS_IGNORED": Bug("  if hops > most_hops then return 'hops' end\n", "", 5000, "max_hops is"),
    "PRIORITY_IGNORED": Bug("  if priority == '' then return due end", "  do return due end", 500, "overtook"),
    "LIMIT_IGNORED": Bug(
        "config.max_inflight < math.huge and config.max_inflight - redis.call('ZCARD', pending) or math.huge",
        "math.huge", 500, "whose max_inflight is",
    ),
    "EPOCH_NOT_COMPARED": Bug("return read.epoch == epoch and ", "return ", 20000, "batch"),
    "BATCH_LEASE_END_NOT_COMPARED": Bug(
        "return read.epoch == epoch and (number(read.ends) or 0) > now", "return read.epoch == epoch", 2000, "batch"
    ),
    "PARTS_ARE_TOPPED_UP": Bug("if not is_new and read.list ~= id then return {'half'} end\n", "", 2000, "two batches"),
    "LATE_FILL_ADDS_MEMBERS": Bug(
        "(read.size ~= had or tonumber(turn) <= (tonumber(read.turn) or 0))", "read.size ~= had", 50_000, "has neither",
    ),
    "FAILED_BATCH_STAYS_LEASED": Bug("'failures', failures, 'expiries', expiries, 'error', error_text, 'ends', 0)",
                                     "'failures', failures, 'expiries', expiries, 'error', error_text)", 20000, ""),
    "ARRIVALS_COUNTED": Bug(
        "  if before and (before ~= 'dead' or outcome == 'dead') then return false end\n", "  before = nil\n",
        2000, "pending",
    ),
    "END_NOT_POSTED": Bug(
        "if onward ~= '' then rarely_1().post(onward, shown, result) end", "", 2000, "was never enqueued"
    ),
    "DEATH_NOT_POSTED": Bug("  post(task[1], 'dead', '')\n", "", 2000, "was never enqueued"),
    "SOME_ARE_ALL": Bug("verdict = succeeded == total and", "verdict = succeeded > 0 and", 500, "too early"),
    "FIRED_JOINS_TAKE_ARRIVALS": Bug("if not (state[4] or state[7]) then\n", "if true then\n", 5000, "error"),
    "GIFT_TAKEN_TWICE": Bug(
        "if (number(redis.call('HGET', transfers, '<' .. giver)) or 0) >= tonumber(gift_number) then return 'had' end",
        "", 20000, "leases of mail",
    ),
    "GIFT_STAYS_WITH_ITS_GIVER": Bug("    slices.inflight = slices.inflight - leases\n", "", 2000, "leases of mail"),
    "CHILDREN_OF_A_LOST_LEASE": Bug("if refused[1] then return refused[1] end\n", "", 2000, "a fan-out of"),
    "PARENT_STAYS_LEASED": Bug("end_leases({id}, {1})\n", "", 500, ""),
    "ABANDONED_JOIN_FIRES": Bug(
        "redis.call('HSET', joining, 'fired', outcome)\nredis.call('UNLINK', collected)\n", "", 20000, "was taken back"
    ),
    "CANCELLED_AND_STILL_THERE": Bug(
        "do removed = removed + redis.call('ZREM', set, id) end", "do removed = removed + 1 end", 20000, "cancelled"
    ),
    "PARTITION_NOT_LEFT": Bug(
        "  leave_partition(prefix, holder, true)\n", "", 20000, "twice in one call"
    ),
    "TICK_FIRED_AGAIN": Bug(
        "if (state[1] or '') ~= expected then return 'missed' end\n", "", 5000,
        "after tick", of=25,
    ),
    "OLD_LEADER_FIRES": Bug(
        "if tonumber(epoch) > 0 and (tonumber(state[3]) or 0) > tonumber(epoch) then return 'fenced' end\n", "", 60_000,
        "by a leader of epoch", of=25,
    ),
    "OVERLAP_IGNORED": Bug(
        "overlap == 'skip' and state[2] and is_live(state[2])", "false", 5000, "is not finished", of=25,
    ),
    "MISSED_TICKS_KEEP_EACH_OTHER_OUT": Bug(
        "local is_together = tonumber(tick) <= (tonumber(state[5]) or 0)", "local is_together = false", 5000,
        "does not keep it out", of=25,
    ),
    "DISABLED_AND_FIRED": Bug(
        "local is_disabled = tonumber(epoch) > 0 and state[4]", "local is_disabled = false", 10_000, "is disabled",
        of=25,
    ),
    "LEAD_TAKEN_TWICE": Bug(
        "if held[1] or resign == '1' then return {now, 0,", "if resign == '1' then return {now, 0,", 2000,
        "leads, while",
    ),
    "LEADER_OF_AN_OLD_EPOCH": Bug(
        "local taken = math.max((number(redis.call('GET', epoch)) or 0) + 1, math.floor(now))", "local taken = 1", 2000,
        "under epoch",
    ),
    "ANCHORED_BY_AN_OLD_LEADER": Bug(
        "if state[1] ~= expected then return 'missed' end\nif ahead_ms", "if ahead_ms", 130_000, "was to go on from",
        of=25,
    ),
    "DELETED_WITH_A_TASK": Bug(
        "if total > 0 then return force == '1' and delete_some() or holds end",
        "if total > 1 then return force == '1' and delete_some() or holds end", 20_000, "was deleted while", of=57,
    ),
    "DELETED_AND_COMMITTED": Bug(
        "  for _, index in ipairs({leases, set}) do redis.call('ZREM', index, unpack(ids)) end\n",
        "  redis.call('ZREM', set, unpack(ids))\n", 20_000, "", of=57,
    ),
    "PURGED_AND_NOT_COUNTED": Bug(
        "redis.call('HINCRBY', counters, counter, #ids)\n", "", 5000, "entered spare/in", of=58,
    ),
    "PURGED_AND_STILL_THERE": Bug("redis.call('ZREMRANGEBYRANK', set, 0, #ids - 1)\n", "", 5000, "", of=58),
    "TRIMMED_WITHOUT_A_NOTE": Bug(
        "  if gone > 0 then note_trimmed(settings, newest) end\n", "", 5000, "is not in the history", of=58,
    ),
    "PURGED_WITHOUT_A_NOTE": Bug(
        "if is_history then note_trimmed(settings, found[#found]) end\n", "", 20_000, "is not in the history", of=58,
    ),
    "EXPIRED_WITHOUT_A_NOTE": Bug(
        "  if redis.call('EXISTS', done) == 0 then note_trimmed(settings, redis.call('HGET', settings, "
        "'history_noted')) end\n", "", 50_000, "is not in the history", of=58,
    ),
    "POPPED_WITHOUT_HISTORY": Bug(
        "  if history then add_to_history(ids, now, history) end\nend", "end", 20_000, "is not in the history", of=58,
    ),
    "HISTORY_WITHOUT_ITS_HASH": Bug("return exact(math.max(tonumber(keep_ms), history.age))", "return keep_ms", 5000,
                                    "without its hash", of=58),
    "DELETED_AND_NOT_COUNTED": Bug(
        "  redis.call('HINCRBY', counters, set == done and 'history_purged' or 'purged', #ids)\n", "", 50_000,
        "entered spare/in", of=57,
    ),
    "WRITTEN_ANEW_AFTER_ITS_DECISION": Bug(
        "if read.state and read.state ~= 'open' and not is_taken_back then", "if false then", 2000, "begins anew",
        of=42,
    ),
    "WRITERS_SHARE_AN_EPOCH": Bug(
        "local epoch, ends = (tonumber(read.epoch) or 0) + 1, exact(now + lease_ms)\nredis.call('HSET', batch, 'queue'",
        "local epoch, ends = tonumber(read.epoch) or 1, exact(now + lease_ms)\nredis.call('HSET', batch, 'queue'", 2000,
        "begins under epoch", of=42,
    ),
    "ROWS_COUNT_UNDECIDED": Bug(
        "for n = 6, #ARGV, 2 do redis.call('RPUSH', batch .. ':manifest', epoch .. '.' .. ARGV[n]) end",
        "for _, one in ipairs(redis.call('SMEMBERS', batch .. ':nonces')) do "
        "redis.call('RPUSH', batch .. ':manifest', one) end", 2000, "was never enqueued", of=42,
    ),
    "ROWS_APPLIED_AGAIN": Bug(
        "for _, applied in ipairs(read_rows) do redis.call('LTRIM', applied[1], applied[2], -1) end\n", "", 5000, "",
        of=42,
    ),
    "NEW_ITEMS_NOT_COUNTED": Bug(
        "for _, counter in ipairs({'moved_in', 'enqueued'}) do", "for _, counter in ipairs({'moved_in'}) do", 2000,
        "entered orders/", of=42,
    ),
    "EXPIRED_AND_HANDED_OUT": Bug(
        "if not limit or not since or since + limit > now or (number(attempts) or 0) > 0 then return false end",
        "if true then return false end", 500, "after it expired", of=2,
    ),
    "EXPIRED_THOUGH_IT_BEGAN": Bug(
        "since + limit > now or (number(attempts) or 0) > 0 then return false", "since + limit > now then return false",
        2000, "", of=2,
    ),
    "RELEASED_AND_EXPIRED": Bug(
        "redis.call('HSET', key, 'place', place, 'expires_in_ms', 'never', 'more', 1)",
        "redis.call('HSET', key, 'place', place, 'more', 1)", 20_000, "", of=2,
    ),
    "REQUEUED_AND_EXPIRED": Bug(
        "'retry_count', 0, 'place', place, 'expires_in_ms', 'never', 'more', 1", "'retry_count', 0, 'place', place, "
        "'more', 1", 20_000, "", of=2,
    ),
    "REQUEUED_ALL_AT_ONCE": Bug(
        "done, due = done + 1, due + step_ms", "done = done + 1", 50_000, "before it was due", of=2,
    ),
    "TRIED_AGAIN_AT_ONCE": Bug(
        "local due = task[8] and now or now + ARGV[at + 2]", "local due = now", 500, "before it was due"
    ),
    "PROMOTED_EARLY": Bug(
        "exact(last_slot_at(now)), 'WITHSCORES', 'LIMIT', 0, most)",
        "exact(last_slot_at(now) + 300), 'WITHSCORES', 'LIMIT', 0, most)", 2000, "before it was due",
    ),
    "DEAD_LETTER_AND_STILL_DEAD": Bug(
        "    dead_letter(id, now, reason, config.dead_letter_queue, hops)\n    return false\n",
        "    dead_letter(id, now, reason, config.dead_letter_queue, hops)\n", 2000, "", of=2,
    ),
    "DEAD_LETTERS_NOT_COUNTED": Bug(
        "  redis.call('HINCRBY', prefix .. 'counters', 'moved_in', 1)\n", "", 2000, "entered post/dead", of=2,
    ),
    "DEAD_LETTERS_ARE_SPENT": Bug(
        "'error', reason, 'retry_count', 0, 'hops', hops + 1", "'error', reason, 'hops', hops + 1", 2000,
        "attempts spent", of=2,
    ),
    "THROTTLE_ENDS_WITH_ITS_TASK": Bug(
        "  local priority = redis.call('HGET', tasks .. id, 'priority') or ''\n",
        "  local priority = redis.call('HGET', tasks .. id, 'priority') or ''\n"
        "  local digest = redis.call('HGET', tasks .. id, 'lock') or ''\n"
        "  redis.call('UNLINK', string.sub(tasks, 1, -6) .. 'unique:' .. digest)\n",
        50_000, "has the lock", of=2,
    ),
    "RATE_OF_KEYS_IGNORED": Bug(
        "  local bucket = limits.key_tokens\n", "  local bucket = false\n", 500, "beyond its rate", of=34
    ),
    "TOKENS_OF_KEYS_NOT_PAID": Bug("      save(known_one.bucket)\n", "", 500, "beyond its rate", of=34),
    "TOKEN_OF_A_KEY_NOT_RETURNED": Bug("    put_back(read, paid)\n", "", 5000, "though it could begin", of=34),
    "KEY_STAYS_BLOCKED": Bug(
        "    redis.call('ZADD', prefix .. 'blocked', 'XX', 0, partition)\n", "", 20_000, "", of=34,
    ),
    "WORKER_SLEEPS_OVER_A_TOKEN_OF_A_KEY": Bug(
        "lifts = math.min(lifts, unblocks_at(prefix, now))", "lifts = lifts", 2000, "was to ask again", of=34,
    ),
    "WORKER_SLEEPS_OVER_A_TOKEN": Bug(
        "lifts = math.min(lifts, refills_at(read, now))", "lifts = lifts", 5000, "was to ask again", of=1,
    ),
    "WORKER_SLEEPS_OVER_A_DUE_TASK": Bug(
        "config.foreseen = math.min(due, ends, dies)", "config.foreseen = math.min(ends, dies)", 2000,
        "was to ask again",
    ),
    "WORKER_SLEEPS_OVER_A_LEASE": Bug(
        "soonest, stopped_at = {}, {}, 0, math.huge, nil", "soonest, stopped_at = {}, {}, 0, math.huge, nil\n"
        "  if config.foreseen then config.foreseen = math.huge end", 2000, "was to ask again",
    ),
    "HANDS_OUT_TOO_FEW": Bug(
        "    if #ids == 0 then return taken, false end\n    if looked_at",
        "    if #ids < wanted then return taken, false end\n    if looked_at", 2000, "though it could begin",
    ),
    "PAYLOAD_OF_ANOTHER": Bug(
        "'payload', ARGV[first + 1], 'enqueue_time', now", "'payload', ARGV[first], 'enqueue_time', now", 500,
        "was handed out with",
    ),
    "STEPS_OF_SHARDS_NOT_POSTED": Bug(
        "if onward ~= '' then rarely_1().post(onward, shown, result) end",
        "if onward ~= '' and redis.call('HEXISTS', settings, 'slice_inflight') == 0 then "
        "rarely_1().post(onward, shown, result) end", 2000, "was never enqueued", of=18,
    ),
    "CANCELLED_FLOW_GOES_ON": Bug(
        "redis.call('HSET', joining, 'fired', outcome)\nredis.call('UNLINK', collected)\n", "", 20_000, "", of=18,
    ),
    "CANCELLED_AND_TRIED_AGAIN": Bug(
        "  if cancel_requested then\n", "  if false then\n", 2000, "it is cancelled", of=26
    ),
    "SNOOZED_TASK_HOLDS_NO_LOCK": Bug(
        "cancelled and {'pending'} or {'waiting', 'scheduled', 'pending'}",
        "cancelled and {'pending'} or {'waiting', 'pending'}", 5000, "has the lock", of=50,
    ),
    "RELEASE_SPENDS_AND_REPLACES": Bug(
        "state == 'pending' or state and (number(task[2]) or 0) + (number(task[9]) or 0) > 0",
        "state and (number(task[2]) or 0) + (number(task[9]) or 0) > 0", 5000, "while the lease", of=50,
    ),
    "REPLAYED_WITHOUT_ITS_PAYLOAD": Bug(
        "  reply[i + 2], reply[i + 3] = fields[i], fields[i + 1]\n",
        "  reply[i + 2], reply[i + 3] = fields[i], fields[i] == 'payload' and '' or fields[i + 1]\n", 5000,
        "was replayed with", of=58,
    ),
    "SLICE_AND_POSITION_APART": Bug("    redis.call('HSET', joining, 'gathered', at)\n", "", 20000, ""),
}  # fmt: skip


def server_with(bug: Bug) -> SimulatedServer:
    """A server whose scripts have the bug. Raises ValueError when no script has the text any more."""
    changed = []

    def patch(source: str) -> str:
        if bug.text in source:
            changed.append(source)
        return source.replace(bug.text, bug.becomes)

    server = SimulatedServer(patch)
    if not changed:
        raise ValueError(f"no script has the text {bug.text!r}: write the bug as the scripts are now")
    return server
