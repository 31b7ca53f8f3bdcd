/* What a command takes from the process that it is, so that limits and variables of its user change nothing: a stack,
 * and threads of OpenMP that have one, too, and sleep while they wait. */
#ifndef LB_SURROUNDINGS_H
#define LB_SURROUNDINGS_H

/* Starts the program once more, by exec, where it is about to compute and OpenMP, which reads the environment before
 * main, has not read what we want. Programs that the command starts have the environment that it was given. */
void lb_surroundings_enter(const char *command, const char **argv);

/* run(argc, argv) on a stack of at least 8 MB: the process's, or where `ulimit -s` allows less, that of a thread. Sets
 * how many threads compute, too. Returns what `run` does, or LB_EXIT_FAILED with a message where there is no such
 * stack. */
int lb_surroundings_run(int (*run)(int argc, const char **argv), int argc, const char **argv);

#endif
