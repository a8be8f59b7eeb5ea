/* What the models share. A model is a set of processes (workers, the leader, time); each `d_step` is one script of the
   server or one step of a process, and the checker tries every order of them, with every crash between two of them.

   SAY   prints a step in terms of the product. The runner shows these lines when a rule is broken.
   RULE  states what must hold here. The text is the name of the rule in the runner's reports. */

#define SAY printf
#define RULE(text, condition) if :: (condition) :: else -> printf("! "); printf(text); printf("\n"); assert(false) fi

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef TASKS
#define TASKS 3            /* at most 3: arrays have 4 places, and number 0 means "none" */
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
