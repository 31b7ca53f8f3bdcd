/* Where an output goes: the folder it lies in, the name of its draft, and what stands there already. Private to
 * formats/base.
 *
 * A place holds the folder open, so that draft, rename and fsync are of one folder even where it is moved
 * meanwhile. */
#ifndef LB_OUTPUT_PLACE_H
#define LB_OUTPUT_PLACE_H

#include <lastbit/output.h>

#include <sys/stat.h>
#include <sys/types.h>

/* A draft is called NAME, a dot, these digits and this end. */
#define LB_OUTPUT_DRAFT ".draft"
enum { LB_OUTPUT_DRAFT_DIGITS = 16 };

typedef struct lb_output_place {
    char *path;       /* as the caller gave it */
    const char *name; /* in it: the last part */
    int folder;       /* descriptor, −1 when closed */
    bool listable;    /* the folder may be read, and so be given to fsync */
    char draft[256];  /* name in the folder; "" when there is none */
    pid_t owner;      /* of the draft: a forked child leaves it alone */
} lb_output_place;

/* Finds folder and name; creates nothing. */
lb_status lb_output_place_open(lb_output_place *place, const char *path, lb_err *err);
/* LB_ERR_EXISTS when something is there that is not to be replaced; `folder`: a folder is to stand there, not a
 * file. */
lb_status lb_output_place_check(const lb_output_place *place, bool replace, bool folder, lb_err *err);
/* Creates the draft: a file (its descriptor, for reading, too) or a folder (0); −1 and errno when none can be made.
 * From then on lb_output_remove_drafts knows of it, until it has its name or is removed: `place` stays where it is. */
int lb_output_place_draft(lb_output_place *place, bool folder, mode_t mode);
/* Gives the draft its name; 0, or errno: EEXIST when something is there and `replace` is not set. */
int lb_output_place_rename(lb_output_place *place, bool replace);
/* From now on a signal removes what has the draft's name. */
void lb_output_place_remember(lb_output_place *place);
/* From now on a signal leaves the draft alone. */
void lb_output_place_forget(lb_output_place *place);
/* Removes the draft, of a folder with the files in it; in a forked child nothing. */
void lb_output_place_drop(lb_output_place *place);
/* Has the system write the folder to the disk; 0 or errno. */
int lb_output_place_sync(const lb_output_place *place);
void lb_output_place_close(lb_output_place *place);

/* fsync, where the file is of a kind that has one; 0 or errno. `data`: without times and such. */
int lb_output_place_sync_descriptor(int fd, bool data);

#endif
