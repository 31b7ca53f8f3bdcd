/* libnvrtc.so without a compiler, for tests: it gives back what it was given, and refuses a source that says so. The
 * functions are those of the public nvrtc.h that capture/cuda/cuda_compile.c calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define NO_SUCCESS 6 /* NVRTC_ERROR_COMPILATION */

/* Said, and asked, by a test: the version is 13.this; how often a program was compiled. */
API extern int nvrtc_standin_minor, nvrtc_standin_compiled;

typedef struct program {
    char code[400], log[100];
} program;

API int nvrtcVersion(int *major, int *minor);
API int nvrtcCreateProgram(program **p, const char *source, const char *name, int n_headers, const char *const *headers,
                           const char *const *header_names);
API int nvrtcDestroyProgram(program **p);
API int nvrtcCompileProgram(program *p, int n_options, const char *const *options);
API int nvrtcGetCUBINSize(program *p, size_t *size);
API int nvrtcGetCUBIN(program *p, char *code);
API int nvrtcGetProgramLogSize(program *p, size_t *size);
API int nvrtcGetProgramLog(program *p, char *log);

int nvrtc_standin_minor = 0, nvrtc_standin_compiled = 0;

int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = nvrtc_standin_minor;
    return 0;
}

int nvrtcCreateProgram(program **p, const char *source, const char *name, int n_headers, const char *const *headers,
                       const char *const *header_names)
{
    *p = calloc(1, sizeof **p);
    if (!*p) return NO_SUCCESS;
    snprintf((*p)->code, sizeof(*p)->code, "%s: %s", name, source);
    for (int i = 0; i < n_headers && headers[i]; i++) {
        const size_t used = strlen((*p)->code);
        snprintf((*p)->code + used, sizeof(*p)->code - used, ", %s: %s", header_names[i], headers[i]);
    }
    return 0;
}

int nvrtcDestroyProgram(program **p)
{
    free(*p);
    *p = NULL;
    return 0;
}

int nvrtcCompileProgram(program *p, int n_options, const char *const *options)
{
    nvrtc_standin_compiled++;
    if (strstr(p->code, "#error")) {
        snprintf(p->log, sizeof p->log, "digest_kernel.cu(1): #error is there");
        return NO_SUCCESS;
    }
    for (int i = 0; i < n_options; i++) {
        const size_t used = strlen(p->code);
        snprintf(p->code + used, sizeof p->code - used, " %s", options[i]);
    }
    return 0;
}

int nvrtcGetCUBINSize(program *p, size_t *size)
{
    *size = strlen(p->code) + 1;
    return 0;
}

int nvrtcGetCUBIN(program *p, char *code)
{
    strcpy(code, p->code);
    return 0;
}

int nvrtcGetProgramLogSize(program *p, size_t *size)
{
    *size = strlen(p->log) + 1;
    return 0;
}

int nvrtcGetProgramLog(program *p, char *log)
{
    strcpy(log, p->log);
    return 0;
}
