/* Outbox and join: what waits for a task is handed on once, at whatever point a worker or the leader crashes. Read
   docs/flows.md and decisions 9 and 24 first: the names are the same.

   The flow:    group( group(task 1, task 2), task 3, on_success=…, on_complete=… )

   Tasks 1 and 2 belong to an inner group, which is the join `inner` without a task of its own: when it fires it posts an
   end itself, for what waits for it. Two joins wait for it and for task 3: `success` and `complete`, each with a
   callback. `success` counts as large, so its results are collected in slices. Task 3 ends by fanning out: it makes one
   child in the step in which it ends.

   The scripts are those of jobrunner/broker/lua: reserve, commit, fail, maintain, requeue, fan_out, outbox_read,
   join_arrive, join_collect. The queues of a flow may be on different nodes, so no script touches a task and a join.

   Left out: what results contain, the expiry of joins, and pieces of results (join_arrive_part, join_pass_on).

   Seeded bugs:
   BUG_POSTED_AFTER_THE_END      the end of a task goes into the outbox by a call of its own
   BUG_FORGOTTEN_FIRST           an entry leaves the outbox before its joins have it
   BUG_ARRIVALS_COUNTED          a join counts arrivals, and so those that are repeated
   BUG_SLICE_AND_POSITION_APART  a slice of results is stored by one call, the position by the next
   BUG_CHILD_APART               a fan-out makes children by one call and ends its task by the next */

#include "rules.pml"

#ifndef DEATHS
#define DEATHS 1           /* tasks that die, in all; each may be put back into its queue (requeue) */
#endif
#ifndef RELAYS
#define RELAYS 2           /* workers and leaders that carry ends to joins at a time */
#endif
#ifndef LOST
#define LOST 1             /* leases that end although their worker lives, and replies that are lost, in all */
#endif

/* Tasks. Task 4 in `ok` and `died` is the inner group. */
#define GROUP 4
bool waiting[4], pending[4], dead[4], finished[4];
byte holder[4];            /* the worker that has the newest lease */
bool ever_ended[4];        /* died or succeeded at least once */

/* The outbox: ends that joins have not been notified of. */
bool posted_ok[5], posted_dead[5];

/* Joins: what they have noted of member 1 and member 2. An arrival in a join is "member m of join j ended so". */
#define INNER 1
#define SUCCESS 2
#define COMPLETE 3
#define NOTHING 0
#define DIED 1
#define OK 2
byte noted_1[4], noted_2[4];
bool fired[4];
byte gathered;             /* position of join_collect in `success` and 1, 0: it does not collect */
byte slices_1, slices_2;   /* how often the result of each member is in what was collected */
#ifdef BUG_ARRIVALS_COUNTED
byte arrivals[4];
#endif

/* What was handed on. */
byte on_success, on_complete, children;

byte crashes, deaths, lost;
byte requeues;             /* that will be made */
bool busy[4], working[4];  /* relays, and workers, that have something in hand */
byte i;                    /* used within one step only, and 0 after it */

/* Idle workers are alike, so the checker lets the first of them reserve: the same runs, fewer states. So are relays. */
#define FIRST_IDLE_WORKER ((me < 2 || working[1]) && (me < 3 || working[2]))
#define FIRST_IDLE_RELAY ((me < 2 || busy[1]) && (me < 3 || busy[2]))
#define HOLDS(t) (pending[t] && holder[t] == me)

inline check()
{
  for (i : 1 .. 3) {
    RULE("a task is in one set, or has finished", waiting[i] + pending[i] + dead[i] + finished[i] == 1)
  }
  i = 0;
  RULE("each callback is enqueued at most once", on_success <= 1 && on_complete <= 1);
  RULE("a fan-out makes each child once", children <= 1);
  RULE("on_success waits until all members succeeded",
    on_success == 0 || (finished[1] && finished[2] && finished[3]));
  RULE("on_complete waits until all members ended",
    on_complete == 0 || (ever_ended[1] && ever_ended[2] && ever_ended[3]));
  RULE("a callback has the result of each member once", on_success == 0 || (slices_1 == 1 && slices_2 == 1))
}

/* Part of the script that ends a task: its end goes into the outbox in the same step. */
inline post_ok(e) { posted_ok[e] = true }
inline post_dead(e) { posted_dead[e] = true }

inline end_lease(t) { pending[t] = false; holder[t] = 0 }

/* join_arrive, the first part: notes the end of a member. A death may be undone, any other end stays. */
inline note(noted, outcome)
{
  if
  :: noted == NOTHING || (noted == DIED && outcome == OK) -> noted = outcome
  :: else
  fi
}

#define BOTH(j, outcome) (noted_1[j] == outcome && noted_2[j] == outcome)
#define ENDED(j) (noted_1[j] != NOTHING && noted_2[j] != NOTHING)

#ifdef BUG_ARRIVALS_COUNTED
#define ALL_ENDED(j) (arrivals[j] >= 2)
#define ALL_OK(j) (arrivals[j] >= 2 && noted_1[j] != DIED && noted_2[j] != DIED)
#define COUNT(j) arrivals[j] = arrivals[j] + 1
#else
#define ALL_ENDED(j) ENDED(j)
#define ALL_OK(j) BOTH(j, OK)
#define COUNT(j) skip
#endif

/* join_arrive of the inner group: it passes its end on through the outbox of its own tag. */
inline arrive_inner(member, outcome)
{
  if
  :: !fired[INNER] ->
       COUNT(INNER);
       if :: member == 1 -> note(noted_1[INNER], outcome) :: else -> note(noted_2[INNER], outcome) fi;
       if
       :: ALL_OK(INNER) -> fired[INNER] = true; noted_1[INNER] = NOTHING; noted_2[INNER] = NOTHING; post_ok(GROUP); SAY("@ the inner group has succeeded\n")
       :: ALL_ENDED(INNER) && !ALL_OK(INNER) -> post_dead(GROUP); SAY("@ the inner group has died\n")
       :: else
       fi
  :: else
  fi
}

/* join_arrive of `success`, which is large: it only begins to collect. From then on nothing arrives any more. */
inline arrive_success(member, outcome)
{
  if
  :: !fired[SUCCESS] && gathered == 0 ->
       COUNT(SUCCESS);
       if :: member == 1 -> note(noted_1[SUCCESS], outcome) :: else -> note(noted_2[SUCCESS], outcome) fi;
       if :: ALL_OK(SUCCESS) -> gathered = 1 :: else fi
  :: else
  fi
}

inline arrive_complete(member, outcome)
{
  if
  :: !fired[COMPLETE] ->
       COUNT(COMPLETE);
       if :: member == 1 -> note(noted_1[COMPLETE], outcome) :: else -> note(noted_2[COMPLETE], outcome) fi;
       if
       :: ALL_ENDED(COMPLETE) ->
            fired[COMPLETE] = true; noted_1[COMPLETE] = NOTHING; noted_2[COMPLETE] = NOTHING;
            on_complete = on_complete + 1; SAY("@ on_complete is enqueued\n")
       :: else
       fi
  :: else
  fi
}

#define COLLECTS (gathered > 0 && !fired[SUCCESS])

/* join_collect adds the result of one member to what was collected, and notes how far it is, in one script. The last
   call enqueues the callback in the step in which it marks the join as fired. */
inline add_slice()
{
  if :: gathered == 1 -> slices_1 = slices_1 + 1 :: else -> slices_2 = slices_2 + 1 fi
}

inline fire_success()
{
  fired[SUCCESS] = true; noted_1[SUCCESS] = NOTHING; noted_2[SUCCESS] = NOTHING; gathered = 0;
  on_success = on_success + 1; SAY("@ on_success is enqueued\n")
}

#define SAY_END(text) \
  SAY("@ relay %d: the end of ", me); \
  if :: entry == GROUP -> SAY("the inner group") :: else -> SAY("task %d", entry) fi; SAY(text)

inline forget_entry()
{
  SAY_END(" leaves the outbox\n");
  if :: outcome == OK -> posted_ok[entry] = false :: else -> posted_dead[entry] = false fi
}

#define READ(e) \
  :: d_step { FIRST_IDLE_RELAY && posted_ok[e] -> busy[me] = true; entry = e; outcome = OK; \
       SAY_END(" is read from the outbox (succeeded)\n") } \
  :: d_step { FIRST_IDLE_RELAY && posted_dead[e] -> busy[me] = true; entry = e; outcome = DIED; \
       SAY_END(" is read from the outbox (dead)\n") }

#define RESET entry = 0; outcome = 0; busy[me] = false
#define RELAY_CRASHES d_step { crashes < CRASHES -> crashes = crashes + 1; SAY("@ relay %d crashes\n", me); RESET }

/* Takes an end from the outbox to all its joins, one call after the other, then removes it. A worker does so for what
   it has ended, and the leader for what it finds: several at once, and each may die between two calls. */
proctype Relay(byte me)
{
  byte entry, outcome;

end_idle:
  if READ(1) READ(2) READ(3) READ(GROUP) fi;
#ifdef BUG_FORGOTTEN_FIRST
  if :: d_step { forget_entry() } :: RELAY_CRASHES; goto end_idle fi;
#endif
  if
  :: d_step { entry <= 2 -> SAY_END(" arrives at the inner group\n");
       arrive_inner(entry, outcome); check() }; goto arrived
  :: d_step { entry > 2 -> SAY_END(" arrives at `success`\n");
       arrive_success((entry == 3 -> 2 : 1), outcome); check() }
  :: RELAY_CRASHES; goto end_idle
  fi;

collecting:
  if
#ifdef BUG_SLICE_AND_POSITION_APART
  :: d_step { COLLECTS && gathered <= 2 -> SAY("@ relay %d collects the result of member %d\n", me, gathered);
       add_slice() };
     if
     :: d_step { gathered = gathered + 1 }; goto collecting
     :: RELAY_CRASHES; goto end_idle
     fi
#else
  :: d_step { COLLECTS && gathered <= 2 -> SAY("@ relay %d collects the result of member %d\n", me, gathered);
       add_slice(); gathered = gathered + 1 }; goto collecting
#endif
  :: d_step { COLLECTS && gathered > 2 -> fire_success(); check() }; goto collecting
  :: d_step { !COLLECTS -> SAY_END(" arrives at `complete`\n");
       arrive_complete((entry == 3 -> 2 : 1), outcome); check() }
  :: RELAY_CRASHES; goto end_idle
  fi;

arrived:
  if
#ifdef BUG_FORGOTTEN_FIRST
  :: d_step { RESET }
#else
  :: d_step { forget_entry(); RESET }
#endif
  :: RELAY_CRASHES
  fi;
  goto end_idle
}

#define FAN_OUT 3          /* the task that has a child */

inline make_child(t)
{
  if :: t == FAN_OUT -> children = children + 1; SAY("@ task %d makes its child\n", t) :: else fi
}

inline finish(t)
{
  SAY("@ worker %d reports that task %d succeeded: accepted\n", me, t);
  end_lease(t); finished[t] = true; ever_ended[t] = true;
#ifndef BUG_POSTED_AFTER_THE_END
  post_ok(t);
#endif
#ifndef BUG_CHILD_APART
  make_child(t);
#endif
  check()
}

inline die(t)
{
  deaths = deaths + 1;
  SAY("@ worker %d reports that task %d failed: it is dead\n", me, t);
  end_lease(t); dead[t] = true; ever_ended[t] = true; post_dead(t); check()
}

#define TAKE(t) \
  :: d_step { waiting[t] && FIRST_IDLE_WORKER -> working[me] = true; task = t; waiting[t] = false; pending[t] = true; \
       holder[t] = me; SAY("@ worker %d reserves task %d\n", me, t); check() }

#define DROP task = 0; working[me] = false
#define WORKER_CRASHES d_step { crashes < CRASHES -> crashes = crashes + 1; \
  SAY("@ worker %d crashes with task %d in hand\n", me, task); \
  if :: HOLDS(task) -> holder[task] = 0 :: else fi; DROP }

proctype Worker(byte me)
{
  byte task;

end_idle:
  if TAKE(1) TAKE(2) TAKE(3) fi;

running:
#if defined(BUG_CHILD_APART)
  if
  :: d_step { HOLDS(task) && task == FAN_OUT -> make_child(task); check() }
  :: task != FAN_OUT || !HOLDS(task)
  fi;
#elif defined(BUG_POSTED_AFTER_THE_END)
  if
  :: d_step { HOLDS(task) -> finish(task) };
     if
     :: d_step { post_ok(task); DROP }
     :: WORKER_CRASHES
     fi;
     goto end_idle
  :: !HOLDS(task)
  fi;
#endif
  if
  :: d_step { HOLDS(task) -> finish(task); DROP }
  :: d_step { HOLDS(task) && lost < LOST -> lost = lost + 1; finish(task);
       SAY("@ the reply is lost, so worker %d sends the report again\n", me) }; goto running
  :: d_step { HOLDS(task) && deaths < DEATHS -> die(task); DROP }
  :: d_step { !HOLDS(task) -> SAY("@ worker %d reports task %d: refused\n", me, task); DROP }
  :: WORKER_CRASHES
  fi;
  goto end_idle
}

/* The lease of a task ends: its worker has crashed, or is slow. A dead task may be put back by a person. */
proctype Time(byte t)
{
end:
  do
  :: d_step { pending[t] && (holder[t] == 0 || lost < LOST) ->
       if :: holder[t] > 0 -> lost = lost + 1 :: else fi;
       SAY("@ the lease of task %d ends, and the sweep recovers it\n", t);
       end_lease(t); waiting[t] = true; check() }
  :: d_step { dead[t] && requeues > 0 -> requeues = requeues - 1; dead[t] = false; waiting[t] = true;
       SAY("@ task %d is requeued\n", t); check() }
  od
}

init
{
  byte k;
  d_step { for (i : 1 .. 3) { waiting[i] = true }; i = 0 };
  if :: requeues = 0 :: requeues = DEATHS fi;
  atomic {
    for (k : 1 .. WORKERS) { run Worker(k) }
    for (k : 1 .. RELAYS) { run Relay(k) }
    for (k : 1 .. 3) { run Time(k) }
    k = 0
  };
  /* When nothing can happen any more, nothing may be left over. */
  timeout -> d_step {
    for (i : 1 .. 3) {
      RULE("every task ends: nothing is stuck or lost", finished[i] || dead[i])
    }
    for (i : 1 .. 4) {
      RULE("every end arrives: the outbox is empty", !posted_ok[i] && !posted_dead[i])
    }
    RULE("when all members ended, on_complete is enqueued", on_complete == 1);
    RULE("when all members succeeded, on_success is enqueued",
      on_success == (finished[1] && finished[2] && finished[3]));
    RULE("when a task has fanned out, its children exist", children == finished[FAN_OUT])
  }
}
