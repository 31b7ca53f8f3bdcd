/* Starting the user's program so that its Python processes record themselves: where our Python folder and the
 * recorder's library lie, what the child's environment says, and running the child as if it ran alone.
 *
 *     lb_launch_find ─▶ lb_launch_environment ─▶ lb_launch_run ─▶ lb_launch_notes
 *
 * The child is an ordinary child of ours in our process group, with our terminal, files and directory. Everything it
 * needs to know travels in the environment, so that its own children, whatever starts them, record too.
 */
#ifndef LB_LAUNCH_H
#define LB_LAUNCH_H

#include <lastbit/error.h>

typedef struct lb_launch {
    char *python;  /* the folder that holds the package `lastbit` */
    char *shim;    /* "<python>/lastbit/launch": its sitecustomize.py starts recording */
    char *library; /* liblastbit_capture.so */
    char *nccl;    /* liblastbit_nccl.so beside it; NULL: it is not there */
    char *mpi;     /* liblastbit_mpi.so likewise */
} lb_launch;

/* `python`: where the command line says that our Python package lies. The library lies beside the running executable
 * (an installed prefix, or a build tree), or where LASTBIT_LIB says. LB_ERR_NOT_FOUND says where it looked. Release
 * whatever the status. */
lb_status lb_launch_find(const char *python, lb_launch *launch, lb_err *err);
void lb_launch_release(lb_launch *launch);

/* Sets PYTHONPATH and LASTBIT_LIB of this process: the shim first, so that its sitecustomize is the one that is found;
 * the package last, where it hides nothing. */
lb_status lb_launch_environment(const lb_launch *launch, lb_err *err);
/* LASTBIT_LIB alone: Python processes do not record themselves. */
lb_status lb_launch_library(const lb_launch *launch, lb_err *err);

/* Has every program that the child starts loaded with the shim under its calls of NCCL, and NCCL itself with it as
 * profiler plugin, unless another is named already. Nothing where there is no shim, and none whose path has a space or
 * a colon: LD_PRELOAD ends a path at each, and what follows would be looked for in the current folder.
 * lb_launch_preloads says which it is. */
lb_status lb_launch_preload(const lb_launch *launch, lb_err *err);
bool lb_launch_preloads(const lb_launch *launch);
/* Has every program that the child starts loaded with the library beneath MPI. LB_ERR_NOT_FOUND: it is not there.
 * LB_ERR_UNSUPPORTED: LD_PRELOAD takes no path like its own. */
lb_status lb_launch_preload_mpi(const lb_launch *launch, lb_err *err);
/* Where LASTBIT_NCCL names the real NCCL, a program that opens ours in its place by LD_LIBRARY_PATH or a path finds
 * behind it what ours does not have: by a link in the capture's folder that the loader looks for by this name. It is a
 * note, and goes with the others. */
#define LB_LAUNCH_NCCL "launch.nccl.so.at"
lb_status lb_launch_nccl_behind(const char *folder, lb_err *err);

/* Runs argv and waits. *code is its exit code, 128 + signal when one killed it; 127 not found, 126 not executable
 * (*code is set and the status is LB_ERR_IO). The terminal's Ctrl-C reaches the child by itself; signals sent to us
 * alone are passed on. */
lb_status lb_launch_run(const char *const *argv, int *code, lb_err *err);

/* What the shims of one run wrote down in its folder (LB_LAUNCH_NOTES), a line per event. */
#define LB_LAUNCH_NOTES "launch.log"
/* Beside it a file per process has the step that runs now, in case nothing more is heard of it: launch.PID.at. */
bool lb_launch_is_note(const char *name);
typedef struct lb_launch_report {
    unsigned processes;         /* Python processes that started */
    unsigned torch;             /* of these, how many imported torch */
    unsigned stepped;           /* and in how many a step began, recorded or not */
    long first_step, last_step; /* of these: the first, and the last that began */
    char bare[64];              /* class of a module that was called and has no parameters; "" where none was */
    unsigned uncalled;          /* processes that made modules, called none, and ran no backward */
    char framework[32];         /* what a process without torch computed with (jax); "" where none was noted */
    char failure[320];          /* why the first one that could not record could not; "" when none */
} lb_launch_report;
/* No such file is an empty report. */
void lb_launch_notes(const char *folder, lb_launch_report *report);

#endif
