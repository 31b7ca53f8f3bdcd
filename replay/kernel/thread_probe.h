/* How many threads this process can start beside its own: asked before a library asks that takes no refusal: OpenMP
 * ends the process where it gets no thread, and OpenBLAS sends it SIGINT. */
#ifndef LB_REPLAY_THREAD_PROBE_H
#define LB_REPLAY_THREAD_PROBE_H

/* Starts up to `wanted` threads that hold nothing, all at one time, and ends them; returns how many there were. Where
 * they are fewer than `wanted`, *error is the errno of the first that could not be started. Threads of others may take
 * the room afterwards. */
long lb_thread_probe(long wanted, int *error);

#endif
