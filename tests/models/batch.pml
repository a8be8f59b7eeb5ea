/* A batch of a Spark station: filled and topped up in slices, worked on, decided, rolled forward; failed, split into
   parts, lost by its driver and handed out again. Read docs/how-batches-work.md first: the names are the same.

   The scripts are those of jobrunner/broker/lua: batch_fill, batch_renew, batch_stage, batch_decide, batch_advance,
   batch_fail, batch_claim. Time is whatever the checker chooses: between any two steps a lease may end whose driver has
   crashed, and a few (LOST) may end although their driver lives and goes on.

   A batch is split into two parts here, so that three items make parts of parts; the product makes 4 or 16 of many.

   Left out: limits and full queues, new items, several writers of rows, failovers that forget writes.

   Seeded bugs:
   BUG_PARTS_ARE_TOPPED_UP   a part of a failed batch gets new items, which belong to no batch then (an earlier version)
   BUG_PARTS_NOT_COUNTED     a split does not count its parts as users of the list of members
   BUG_DECIDE_WITHOUT_EPOCH  a decision counts whoever makes it, while the batch is leased */

#include "rules.pml"

#ifndef DRIVERS
#define DRIVERS 2
#endif
#define ITEMS TASKS
#define BATCHES 6
#define MAX_ATTEMPTS 2
#define FAILURES_OF_A_WHOLE 2
#ifndef FAILURES
#define FAILURES 2         /* reported failures, in all */
#endif
#ifndef LOST
#define LOST 1             /* leases that end although their driver lives, and replies that are lost, in all */
#endif
#ifndef RETURNS
#define RETURNS 1          /* batches that are dissolved, or left alone for a week, in all */
#endif

/* Items. `number` is the one in `leases`: that of the batch that the item is a member of, 0: none. */
bool waiting[4], pending[4], moved[4], dead[4];
byte number[4];
byte written[4];           /* how often a sink got it from a driver whose batch was decided */

/* Batches. The number of a batch that was filled is its place in these arrays; its parts have the number of the root. */
#define NONE 0
#define OPEN 1
#define COMMITTED 2
#define SPLIT 3
#define DONE 4
byte state[7], epoch[7], root[7], first[7], size[7], failures[7], expiries[7];
bool live[7];              /* its lease has not ended */
bool expires[7];           /* there is a lease, so its end would be a failure */
bool over[7];              /* the leases of its members ended: a week without a driver */
byte rows[7];              /* staged, a bit for each item */
byte rest[7];              /* after the decision: what becomes of members that no row names */
#define SUCCEEDED 0
#define DIES 1
#define BACK 2
byte members[7];           /* of a root: the ids in order, two bits each */
byte users[7];             /* of a root: batches that use the list of members */
byte size_by_name[7];      /* the size of a part follows from its name */

/* Drivers: what each has in its memory. */
byte has[4], its_epoch[4], its_first[4], its_size[4];
bool staged[4];

byte crashes, failed, lost, returned;
byte i, j, k, n, p;        /* used within one step only, and 0 after it */

#define AT_MOST_2(count) ((count) > 2 -> 2 : (count))   /* nothing asks for more: fewer states */
#define MEMBER(list, position) ((list >> (2 * (position))) & 3)
#define IS_PART(b) (root[b] != b)
#define LEASED_AS(b, e) (epoch[b] == e && live[b])
#define IS_LIVE_MEMBER(one, b) (pending[one] && number[one] == root[b])

/* The hash of a batch that is done goes after a day; here as soon as no driver knows it, for its place in the arrays. */
inline forget_done()
{
  for (k : 1 .. BATCHES) {
    if
    :: (state[k] == DONE || state[k] == SPLIT) && users[k] == 0 && has[1] != k && has[2] != k && has[3] != k ->
         state[k] = NONE; epoch[k] = 0; root[k] = 0; first[k] = 0; size[k] = 0; failures[k] = 0; expiries[k] = 0;
         live[k] = false; expires[k] = false; over[k] = false; rows[k] = 0; rest[k] = 0; members[k] = 0;
         size_by_name[k] = 0
    :: else
    fi
  }
}

inline check()
{
  for (i : 1 .. ITEMS) {
    RULE("an item is in one place", waiting[i] + pending[i] + moved[i] + dead[i] == 1);
    n = 0;
    for (k : 1 .. BATCHES) {
      if
      :: (state[k] == OPEN || state[k] == COMMITTED) && size[k] > 0 ->
           for (p : first[k] .. first[k] + size[k] - 1) {
             if :: MEMBER(members[root[k]], p) == i && number[i] == root[k] -> n = n + 1 :: else fi
           }
      :: else
      fi
    }
    RULE("a pending item is a member of exactly one open batch", !pending[i] || n == 1);
    RULE("a sink gets each item once", written[i] <= 1)
  }
  for (k : 1 .. BATCHES) {
    RULE("a part of a split batch never grows", size_by_name[k] == 0 || size[k] == size_by_name[k]);
    RULE("a list of members exists while a batch needs it",
      (state[k] != OPEN && state[k] != COMMITTED) || users[root[k]] > 0)
  }
  forget_done();
  i = 0; j = 0; k = 0; n = 0; p = 0
}

#define FREE_BATCH (state[1] == NONE || state[2] == NONE || state[3] == NONE || state[4] == NONE)
#define SOME_WAIT (waiting[1] || waiting[2] || waiting[3])

inline find_free()
{
  for (k : 1 .. BATCHES) { if :: state[BATCHES + 1 - k] == NONE -> j = BATCHES + 1 - k :: else fi };
  RULE("the model has a place for each batch", j > 0)
}

inline find_first_waiting()
{
  for (k : 1 .. ITEMS) { if :: waiting[ITEMS + 1 - k] -> i = ITEMS + 1 - k :: else fi }
}

inline hand_out(b)
{
  its_epoch[me] = epoch[b]; its_first[me] = first[b]; its_size[me] = size[b]; has[me] = b
}

inline drop() { has[me] = 0; its_epoch[me] = 0; its_first[me] = 0; its_size[me] = 0; staged[me] = false }

/* batch_fill of a new batch, its first slice. */
inline fill_new()
{
  j = 0; find_free(); find_first_waiting();
  SAY("@ driver %d takes item %d in a new batch %d\n", me, i, j);
  waiting[i] = false; pending[i] = true; number[i] = j;
  state[j] = OPEN; epoch[j] = 1; live[j] = true; expires[j] = true;
  root[j] = j; size[j] = 1; members[j] = i; users[j] = 1;
  hand_out(j)
}

/* batch_fill of a batch that was just begun. Of two equal calls the second changes nothing. */
inline top_up(b)
{
  find_first_waiting();
  SAY("@ driver %d tops batch %d up with item %d\n", me, b, i);
  waiting[i] = false; pending[i] = true; number[i] = b;   /* the number is made from the id of the batch */
  members[b] = members[b] | (i << (2 * size[b]));         /* ... as is the name of this list: that of a part is its own */
  size[b] = size[b] + 1
}

/* Of a part this version refuses it. Earlier versions did not. */
#ifdef BUG_PARTS_ARE_TOPPED_UP
#define MAY_GROW(b) true
#else
#define MAY_GROW(b) (!IS_PART(b))
#endif

/* Nothing depends on these any more when a batch is decided or split: fewer states. */
inline end_attempts(b) { live[b] = false; expires[b] = false; epoch[b] = 0; failures[b] = 0; expiries[b] = 0 }

/* Two parts: ranges of the list of the root. They are due at once. */
inline split(b)
{
  SAY("@ batch %d is split\n", b);
  p = size[b] / 2;
  j = 0; find_free();
  state[j] = OPEN; root[j] = root[b]; first[j] = first[b]; size[j] = p; size_by_name[j] = p;
  failures[j] = failures[b]; expiries[j] = expiries[b]; over[j] = over[b];
  SAY("@ its part %d has %d of its members from position %d on\n", j, size[j], first[j]);
  j = 0; find_free();
  state[j] = OPEN; root[j] = root[b]; first[j] = first[b] + p; size[j] = size[b] - p; size_by_name[j] = size[b] - p;
  failures[j] = failures[b]; expiries[j] = expiries[b]; over[j] = over[b];
  SAY("@ its part %d has %d of its members from position %d on\n", j, size[j], first[j]);
#ifndef BUG_PARTS_NOT_COUNTED
  users[root[b]] = users[root[b]] + 1;
#endif
  state[b] = SPLIT; rows[b] = 0; end_attempts(b)
}

inline decide_without_rows(b, what)
{
  state[b] = COMMITTED; rest[b] = what; rows[b] = 0; end_attempts(b)
}

/* A whole batch is tried again; one that keeps failing, or whose error is one of its rows (`blamed`), is split until the
   members that fail are alone. `tries` counts against max_attempts of a member that is alone. */
inline count_failure(b, blamed, tries)
{
  live[b] = false; expires[b] = false; rows[b] = 0;
  if
  :: size[b] == 1 && tries >= MAX_ATTEMPTS -> SAY("@ the item of batch %d is dead\n", b); decide_without_rows(b, DIES)
  :: size[b] > 1 && (blamed || failures[b] >= FAILURES_OF_A_WHOLE || expiries[b] >= MAX_ATTEMPTS) -> split(b)
  :: else
  fi
}

/* The next epoch is any that no driver remembers: the product counts on, here the smallest will do. */
#define KNOWN(b, e) ((has[1] == b && its_epoch[1] == e) || (has[2] == b && its_epoch[2] == e) || \
  (has[3] == b && its_epoch[3] == e))

inline next_epoch(b)
{
  if
  :: epoch[b] == 0 -> epoch[b] = 1
  :: epoch[b] > 0 && !KNOWN(b, 2) -> epoch[b] = 2
  :: epoch[b] > 0 && KNOWN(b, 2) && !KNOWN(b, 3) -> epoch[b] = 3
  :: epoch[b] > 0 && KNOWN(b, 2) && KNOWN(b, 3) -> epoch[b] = 4
  fi
}

/* batch_claim: hands out a batch whose lease ended, or that is due after a failure. */
inline claim(b)
{
  SAY("@ driver %d claims batch %d\n", me, b);
  rows[b] = 0;
  if
  :: over[b] -> SAY("@ its members are back in the queue, so it is not run\n"); decide_without_rows(b, BACK)
  :: !over[b] && expires[b] ->
       SAY("@ its lease ended without a report, which counts\n");
       expiries[b] = AT_MOST_2(expiries[b] + 1); count_failure(b, false, expiries[b])
  :: else
  fi;
  if
  :: state[b] == OPEN -> next_epoch(b); live[b] = true; expires[b] = true; hand_out(b)
  :: else
  fi
}

#define MINE (has[me] > 0 && state[has[me]] == OPEN && LEASED_AS(has[me], its_epoch[me]))

#ifdef BUG_DECIDE_WITHOUT_EPOCH
#define MAY_DECIDE (state[has[me]] == OPEN && live[has[me]])
#else
#define MAY_DECIDE MINE
#endif

/* batch_stage: a row for each member that the driver read from the list and that is still one. */
inline stage(b)
{
  SAY("@ driver %d stages the rows of batch %d\n", me, b);
  staged[me] = true;
  for (p : its_first[me] .. its_first[me] + its_size[me] - 1) {
    n = MEMBER(members[root[b]], p);
    if :: n > 0 && IS_LIVE_MEMBER(n, b) -> rows[b] = rows[b] | (1 << n) :: else fi
  }
}

/* batch_decide. Only a holder that has staged its rows calls it; a sink's rows are visible from here on. */
inline decide(b)
{
  SAY("@ driver %d decides batch %d: committed\n", me, b);
  RULE("only the newest holder decides, and not after the end of its lease", MINE);
  for (p : its_first[me] .. its_first[me] + its_size[me] - 1) {
    n = MEMBER(members[root[b]], p);
    if :: n > 0 && IS_LIVE_MEMBER(n, b) -> written[n] = written[n] + 1 :: else fi
  };
  state[b] = COMMITTED; rest[b] = SUCCEEDED; end_attempts(b)
}

#define FIRST_IDLE (has[me] == 0 && (me < 2 || has[1]) && (me < 3 || has[2]))   /* idle drivers are alike */
#define CLAIM(b) :: d_step { FIRST_IDLE && state[b] == OPEN && !live[b] -> claim(b); check() }
#define FAIL(blamed) failed = failed + 1; n = has[me]; failures[n] = AT_MOST_2(failures[n] + 1); drop(); \
  count_failure(n, blamed, failures[n] + expiries[n]); check()

proctype Driver(byte me)
{
end:
  do
  :: d_step { FIRST_IDLE && SOME_WAIT && FREE_BATCH -> fill_new(); check() }
  CLAIM(1) CLAIM(2) CLAIM(3) CLAIM(4) CLAIM(5) CLAIM(6)

  /* A driver of this version knows a part by its root; earlier ones went by the epoch, and may still run. */
  :: d_step { MINE && !staged[me] && its_epoch[me] == 1 && SOME_WAIT && MAY_GROW(has[me]) ->
       top_up(has[me]); its_size[me] = size[has[me]]; check() }
  :: d_step { MINE && !staged[me] -> stage(has[me]); check() }
  :: d_step { has[me] > 0 && staged[me] && MAY_DECIDE -> decide(has[me]); drop(); check() }
  :: d_step { MINE && failed < FAILURES -> SAY("@ driver %d reports that batch %d failed\n", me, has[me]); FAIL(false) }
  :: d_step { MINE && failed < FAILURES -> SAY("@ driver %d reports that a row of batch %d failed\n", me, has[me]);
       FAIL(true) }
  :: d_step { MINE && returned < RETURNS -> returned = returned + 1;
       SAY("@ driver %d dissolves batch %d\n", me, has[me]);
       j = has[me]; drop(); decide_without_rows(j, BACK); check() }
  :: d_step { has[me] > 0 && !MINE ->                     /* renew, or any other call of it */
       SAY("@ driver %d is refused: batch %d is not its own any more\n", me, has[me]); drop(); check() }
  :: d_step { MINE && crashes < CRASHES -> crashes = crashes + 1;
       SAY("@ driver %d crashes with batch %d in hand\n", me, has[me]); drop(); check() }
  od
}

/* batch_advance, by any process: the driver, another one, the leader. One row, or one member, in each slice. */
inline end_lease(one) { pending[one] = false; number[one] = 0 }

inline advance(b)
{
  n = 0;
  for (k : 1 .. ITEMS) { if :: n == 0 && (rows[b] & (1 << k)) -> n = k :: else fi };
  if
  :: n > 0 ->                                            /* a row: applied and cut in one step */
       rows[b] = rows[b] & (255 - (1 << n));
       if
       :: IS_LIVE_MEMBER(n, b) -> end_lease(n); moved[n] = true; SAY("@ item %d of batch %d moves on\n", n, b)
       :: else -> SAY("@ the row of item %d is skipped\n", n)
       fi
  :: else ->                                             /* members that no row names, then the batch itself */
       for (p : first[b] .. first[b] + size[b] - 1) {
         k = MEMBER(members[root[b]], p);
         if :: n == 0 && k > 0 && IS_LIVE_MEMBER(k, b) -> n = k :: else fi
       };
       if
       :: n > 0 && rest[b] == BACK -> end_lease(n); waiting[n] = true; SAY("@ item %d is back in the queue\n", n)
       :: n > 0 && rest[b] == DIES -> end_lease(n); dead[n] = true
       :: n > 0 && rest[b] == SUCCEEDED -> RULE("no member ends without a row of its driver", false)
       :: else ->
            SAY("@ batch %d is done\n", b);
            state[b] = DONE;
            users[root[b]] = users[root[b]] - 1;
            if :: users[root[b]] == 0 -> members[root[b]] = 0 :: else fi
       fi
  fi
}

#define IN_HAND(b) KNOWN(b, epoch[b])

/* Decided batches have no member in common, so the checker rolls the first of them forward: fewer states. */
#define FIRST_COMMITTED(b) ((b < 2 || state[1] != COMMITTED) && (b < 3 || state[2] != COMMITTED) && \
  (b < 4 || state[3] != COMMITTED) && (b < 5 || state[4] != COMMITTED) && (b < 6 || state[5] != COMMITTED))

proctype Batch(byte b)
{
end:
  do
  :: d_step { state[b] == COMMITTED && FIRST_COMMITTED(b) -> advance(b); check() }
  :: d_step { state[b] == OPEN && live[b] && (lost < LOST || !IN_HAND(b)) ->
       if :: IN_HAND(b) -> lost = lost + 1 :: else fi;
       live[b] = false; SAY("@ the lease of batch %d ends\n", b) }
  :: d_step { state[b] == OPEN && !live[b] && !over[b] && returned < RETURNS ->
       returned = returned + 1; over[b] = true;
       SAY("@ no driver takes batch %d for a week: the sweep returns its members to the queue\n", b);
       for (p : first[b] .. first[b] + size[b] - 1) {
         n = MEMBER(members[root[b]], p);
         if :: n > 0 && IS_LIVE_MEMBER(n, b) -> end_lease(n); waiting[n] = true :: else fi
       };
       check() }
  od
}

init
{
  d_step { for (i : 1 .. ITEMS) { waiting[i] = true }; i = 0 };
  atomic {
    byte m;
    for (m : 1 .. DRIVERS) { run Driver(m) }
    for (m : 1 .. BATCHES) { run Batch(m) }
    m = 0
  };
  /* When nothing can happen any more, nothing may be left over. */
  timeout -> d_step {
    for (i : 1 .. ITEMS) {
      RULE("every item ends: nothing is stuck or lost", moved[i] || dead[i])
    }
    for (i : 1 .. BATCHES) {
      RULE("every batch ends, and its list of members goes", state[i] == NONE && members[i] == 0)
    }
  }
}
