/* A stand-in for the runtime library that compiled host code of CuTe DSL calls (CUTE_DSL_LIBS).
 *
 * The eight functions at first are those that the JIT asks for; each mirrors the public CUDA runtime
 * function of its name. Nothing is loaded or launched here: a launch is handed to `launch_hook`.
 *
 * Those of CuteDSLRuntime.h load object files. The C compiler links each to this library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  uint64_t library;
  char name[];
} Kernel;

typedef int (*LaunchHook)(const void *config, const void *kernel, void **arguments);

static LaunchHook launch_hook;
static uint64_t next_library;

void standin_on_launch(LaunchHook hook) { launch_hook = hook; }
void standin_next_library(uint64_t handle) { next_library = handle; }

int _cudaGetDevice(int *device) {
  *device = 0;
  return 0;
}

int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)attribute, (void)device;
  *value = 0;
  return 0;
}

int _cuKernelGetAttribute(int *value, int attribute, const void *kernel, int device) {
  (void)attribute, (void)kernel, (void)device;
  *value = 0;
  return 0;
}

int _cudaFuncSetAttribute(const void *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return 0;
}

int _cudaKernelSetAttributeForDevice(const void *kernel, int attribute, int value, int device) {
  (void)kernel, (void)attribute, (void)value, (void)device;
  return 0;
}

int _cudaLibraryLoadData(void **library, const void *code, void *jit_options, void *jit_values,
                         unsigned jit_count, void *options, void *values, unsigned count) {
  (void)code, (void)jit_options, (void)jit_values, (void)jit_count;
  (void)options, (void)values, (void)count;
  *library = (void *)next_library;
  return 0;
}

int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  Kernel *made = malloc(sizeof(Kernel) + strlen(name) + 1); /* lives as long as the process */
  if (!made) return 2;
  made->library = (uint64_t)library;
  strcpy(made->name, name);
  *kernel = made;
  return 0;
}

int _cudaLaunchKernelEx(const void *config, const void *kernel, void **arguments) {
  return launch_hook ? launch_hook(config, kernel, arguments) : 1;
}

enum { SUCCESS, CUDA_ERROR, INVALID_BINARY };

typedef void (*Packed)(void **arguments);

static int link_object(const char *object, const char *linked) {
  const char *compiler = getenv("CC");
  char command[4096];
  Dl_info own;
  if (!dladdr((void *)link_object, &own)) return 1;
  snprintf(command, sizeof command, "%s -shared -o %s %s %s 2>/dev/null",
           compiler ? compiler : "cc", linked, object, own.dli_fname);
  return system(command);
}

int CuteDSLRT_Module_Create_From_Bytes(void **module, const unsigned char *bytes, size_t size,
                                       const char **libraries, size_t count) {
  (void)libraries, (void)count;
  char object[] = "/tmp/standin_XXXXXX.o", linked[sizeof object + 1];
  int file = mkstemps(object, 2);
  if (file < 0) return INVALID_BINARY;
  int written = write(file, bytes, size) == (ssize_t)size;
  close(file);
  sprintf(linked, "%s", object);
  strcpy(strrchr(linked, '.'), ".so");
  *module = NULL; /* DEEPBIND: the real runtime may be loaded for all */
  if (written && !link_object(object, linked))
    *module = dlopen(linked, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  unlink(object);
  unlink(linked);
  return *module ? SUCCESS : INVALID_BINARY;
}

static Packed found(void *module, const char *prefix, const char *name) {
  char whole[256];
  snprintf(whole, sizeof whole, "_mlir_%s_%s", prefix, name);
  return (Packed)dlsym(module, whole);
}

/* The code is loaded for one device. */
int CuteDSLRT_Module_Get_Function(void **function, void *module, const char *prefix) {
  char name[256];
  snprintf(name, sizeof name, "%s_function_name", prefix);
  const char *entry = dlsym(module, name);
  Packed init = found(module, prefix, "cuda_init");
  Packed load = found(module, prefix, "cuda_load_to_device");
  if (!entry || !init || !load) return INVALID_BINARY;
  void *library = NULL, *place = &library;
  int device = 0, error = 0;
  init((void *[]){&place, &error});
  if (!error) load((void *[]){&place, &device, &error});
  *function = dlsym(module, entry);
  return error ? CUDA_ERROR : *function ? SUCCESS : INVALID_BINARY;
}

int CuteDSLRT_Function_Run(void *function, void **arguments, size_t count) {
  ((Packed)function)(arguments);
  return *(int *)arguments[count - 1] ? CUDA_ERROR : SUCCESS;
}

const char *CuteDSLRT_GetErrorString(int error) {
  return error == CUDA_ERROR ? "CUDA error occurred" : "Invalid binary";
}
