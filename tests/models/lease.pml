/* The life of a lease: reserve, run, renew, report; crash, end of the lease, recovery, the late report of a holder
   that lost it. Read docs/life-of-a-task.md first: the names are the same.

   The scripts are those of jobrunner/broker/lua: reserve, extend, commit, fail, crash, release, maintain. Time is
   whatever the checker chooses: between any two steps a lease may lose half of its length, and a scheduled task may
   become due. So a worker that is suspended, or cut off from the server, is one that makes no step for a while.

   Left out: payloads, priorities, rate limits and the fields of a task, which no step here depends on.

   Seeded bugs:
   BUG_NUMBER_NOT_COMPARED    a report counts whoever sends it, while the task is pending
   BUG_SWEEP_ENDS_THE_LEASE   a report counts until the sweep has noticed the end of the lease
   BUG_NUMBER_IS_THE_ATTEMPT  leases are numbered by attempts, and an attempt may be given back
   BUG_RECOVERED_TO_THE_BACK  a task whose worker died goes to the end of the line
   BUG_LIMIT_COUNTS_WORKERS   max_inflight counts workers that have a task in hand, not leases */

#include "rules.pml"

#define MAX_ATTEMPTS 2
#ifndef MAX_INFLIGHT
#define MAX_INFLIGHT 2     /* one less than workers, so that the limit is reached */
#endif
#ifndef FAILURES
#define FAILURES 1         /* reported failures of jobs, in all */
#endif
#ifndef LOST
#define LOST 1             /* replies of the server that are lost on the way, in all */
#endif

/* The server: the four sets and the hash of each task. */
bool waiting[4], scheduled[4], pending[4], dead[4], hash[4];
byte place[4];             /* in line, 1 is the first */
byte lease[4];             /* number of the newest lease, 0: none */
byte left[4];              /* of that lease: 2 all, 1 half, 0 it has ended, whether or not the server has noticed */
byte attempts[4];          /* that are spent */
byte issued[4];            /* the newest number ever handed out */
bool due[4];

/* What has happened so far. */
byte crashes, failures, lost, succeeded;
byte fair_place[4];        /* where the task should be in line: only a reported failure changes it */

bool busy[4];              /* workers that have a task in hand */

byte i, n, first;          /* used within one step only, and 0 after it */

#define SOME_WAIT (waiting[1] || waiting[2] || waiting[3])
#define INFLIGHT (pending[1] + pending[2] + pending[3])

#ifdef BUG_LIMIT_COUNTS_WORKERS
#define COUNTED (busy[1] + busy[2] + busy[3])
#else
#define COUNTED INFLIGHT
#endif

/* Idle workers are alike, so the checker lets the first of them reserve: the same runs, fewer states. */
#define FIRST_IDLE ((me < 2 || busy[1]) && (me < 3 || busy[2]))

/* A report counts when it has the newest number and the lease has not ended. The end decides, not the sweep. */
#define HOLDS(t, number) (pending[t] && lease[t] == number && left[t] > 0)
#if defined(BUG_NUMBER_NOT_COMPARED)
#define ACCEPTED(t, number) (pending[t] && left[t] > 0)
#elif defined(BUG_SWEEP_ENDS_THE_LEASE)
#define ACCEPTED(t, number) (pending[t] && lease[t] == number)
#else
#define ACCEPTED(t, number) HOLDS(t, number)
#endif

inline check()
{
  n = 0;
  for (i : 1 .. TASKS) {
    RULE("a task is in one set while its hash exists, and in none afterwards",
      waiting[i] + scheduled[i] + pending[i] + dead[i] == hash[i]);
    RULE("a lease exists exactly while its task is pending", pending[i] == (lease[i] > 0));
    RULE("attempts never exceed max_attempts", attempts[i] <= MAX_ATTEMPTS);
    n = n + hash[i]
  }
  RULE("enqueued = succeeded + waiting + scheduled + pending + dead", n + succeeded == TASKS);
  RULE("no more tasks are pending than max_inflight", INFLIGHT <= MAX_INFLIGHT);
  i = 0; n = 0; first = 0
}

#define TO_THE_BACK(places, t) \
  for (i : 1 .. TASKS) { if :: places[i] > places[t] -> places[i] = places[i] - 1 :: else fi }; places[t] = TASKS

/* reserve: waiting -> pending, the first in line, under a new number. */
inline reserve(t, number)
{
  first = 0;
  for (i : 1 .. TASKS) {
    if :: waiting[i] && (first == 0 || place[i] < place[first]) -> first = i :: else fi
  }
  t = first;
#ifdef BUG_NUMBER_IS_THE_ATTEMPT
  number = attempts[t] + 1;
#else
  number = issued[t] + 1;
#endif
  SAY("@ worker %d reserves task %d (lease %d)\n", me, t, number);
  RULE("a lease number is handed out at most once", number > issued[t]);
  RULE("nothing is handed out before it is due", due[t]);
  for (i : 1 .. TASKS) {
    RULE("tasks are handed out in order; a crash costs no place", !waiting[i] || fair_place[i] >= fair_place[t])
  }
  issued[t] = number; waiting[t] = false; pending[t] = true; lease[t] = number; left[t] = 2
}

inline end_lease(t) { pending[t] = false; lease[t] = 0; left[t] = 0 }

/* The numbers of a task that has ended are reset, because nothing may depend on them any more: fewer states. */
inline end_task(t) { attempts[t] = 0; issued[t] = 0 }

/* Of an attempt that ended without a report: back to its place, or dead when the attempts are spent. */
inline recover(t)
{
  end_lease(t);
  attempts[t] = attempts[t] + 1;
  if
  :: attempts[t] >= MAX_ATTEMPTS ->
       dead[t] = true; end_task(t); SAY("@ task %d is dead: its attempts are spent\n", t)
  :: else -> waiting[t] = true
  fi
#ifdef BUG_RECOVERED_TO_THE_BACK
  ; TO_THE_BACK(place, t)
#endif
}

inline forget() { task = 0; number = 0; begun = false; busy[me] = false }

inline lose_reply() { lost = lost + 1; SAY("@ the reply is lost, so the report is sent again\n") }

inline must_hold(t, number)
{
  RULE("only the holder of the newest lease may report, and not after its end", HOLDS(t, number))
}

inline commit(t, number)
{
  SAY("@ worker %d reports that task %d succeeded (lease %d): accepted\n", me, t, number);
  must_hold(t, number);
  end_lease(t); hash[t] = false; succeeded = succeeded + 1; end_task(t); check()
}

inline fail(t, number)
{
  SAY("@ worker %d reports that task %d failed (lease %d): accepted\n", me, t, number);
  must_hold(t, number);
  end_lease(t);
  failures = failures + 1; attempts[t] = attempts[t] + 1;
  TO_THE_BACK(place, t); TO_THE_BACK(fair_place, t);
  if
  :: attempts[t] >= MAX_ATTEMPTS -> dead[t] = true; end_task(t); SAY("@ task %d is dead\n", t)
  :: else -> scheduled[t] = true; due[t] = false
  fi;
  check()
}

/* What the lease keeper of a dead worker reports. Nothing is spent for a task that had not begun. */
inline keeper_reports(t, number)
{
  must_hold(t, number);
  if
  :: begun ->
       SAY("@ the lease keeper of worker %d reports that it crashed in task %d (lease %d)\n", me, t, number);
       recover(t)
  :: else ->
       SAY("@ the lease keeper of worker %d returns task %d (lease %d), which had not begun\n", me, t, number);
       end_lease(t); waiting[t] = true
  fi;
  check()
}

proctype Worker(byte me)
{
  byte task, number;       /* in hand, 0: none */
  bool begun;

end_idle:                  /* a worker without work may wait here for ever */
  if
  :: d_step { SOME_WAIT && COUNTED < MAX_INFLIGHT && FIRST_IDLE ->
       busy[me] = true; reserve(task, number); check() }
  :: d_step { SOME_WAIT && COUNTED < MAX_INFLIGHT && FIRST_IDLE && lost < LOST ->
       lost = lost + 1; reserve(task, number);
       SAY("@ the reply to worker %d is lost\n", me);
       forget(); check() };
     goto end_idle
  fi;

holding:                   /* before the job begins, and while it runs */
  if
  :: d_step { !begun -> begun = true; SAY("@ worker %d begins task %d\n", me, task) }; goto holding
  :: d_step { HOLDS(task, number) && left[task] < 2 ->   /* extend */
       left[task] = 2; SAY("@ worker %d renews its lease of task %d\n", me, task) }; goto holding
  :: d_step { begun && ACCEPTED(task, number) -> commit(task, number); forget() }; goto end_idle
  :: d_step { begun && ACCEPTED(task, number) && lost < LOST -> commit(task, number); lose_reply() }; goto holding
  :: d_step { begun && ACCEPTED(task, number) && failures < FAILURES -> fail(task, number); forget() }; goto end_idle
  :: d_step { begun && ACCEPTED(task, number) && failures < FAILURES && lost < LOST ->
       fail(task, number); lose_reply() }; goto holding
  :: d_step { begun && !ACCEPTED(task, number) ->        /* any report that is refused changes nothing */
       SAY("@ worker %d reports task %d (lease %d): refused\n", me, task, number); forget() }; goto end_idle
  :: d_step { crashes < CRASHES -> crashes = crashes + 1;
       SAY("@ worker %d crashes with task %d in hand\n", me, task) }; goto crashed
  fi;

crashed:                   /* its lease keeper, a second process, may live: it knows what had begun */
  if
  :: d_step { ACCEPTED(task, number) -> keeper_reports(task, number); forget() }
  :: d_step { ACCEPTED(task, number) && lost < LOST -> keeper_reports(task, number); lose_reply() }; goto crashed
  :: d_step { forget(); SAY("@ no report of the lease keeper of worker %d is accepted\n", me) }
  fi;
  goto end_idle
}

/* Time, and the sweep (maintain) that every call on the queue makes first, and the leader for idle queues. */
proctype Time(byte t)
{
end:
  do
  :: d_step { left[t] == 2 -> left[t] = 1 }
  :: d_step { left[t] == 1 -> left[t] = 0; SAY("@ the lease %d of task %d ends\n", lease[t], t) }
  :: d_step { scheduled[t] && !due[t] -> due[t] = true }
  :: d_step { pending[t] && left[t] == 0 ->
       SAY("@ the sweep recovers task %d\n", t); recover(t); check() }
  :: d_step { scheduled[t] && due[t] -> scheduled[t] = false; waiting[t] = true; check() }
  od
}

init
{
  d_step {
    for (i : 1 .. TASKS) {
      hash[i] = true; waiting[i] = true; due[i] = true; place[i] = i; fair_place[i] = i
    }
  };
  atomic {
    byte k;
    for (k : 1 .. WORKERS) { run Worker(k) }
    for (k : 1 .. TASKS) { run Time(k) }
    k = 0
  };
  /* When nothing can happen any more, nothing may be left over. */
  timeout -> d_step {
    for (i : 1 .. TASKS) {
      RULE("every task ends: nothing is stuck or lost", !hash[i] || dead[i])
    }
  }
}
