/* A JSON file that lies beside a checkpoint's tensors: config.json, adapter_config.json. */
#ifndef LB_BISECT_AUDIT_SIDE_FILE_H
#define LB_BISECT_AUDIT_SIDE_FILE_H

#include <lastbit/json_text.h>

/* `path`: the checkpoint's folder, or one file of it. NULL where there is none; the caller owns it. */
json_t *lb_side_file_load(const char *path, const char *name);

#endif
