/* A stand-in for the runtime library that compiled host code of CuTe DSL calls (CUTE_DSL_LIBS).
 *
 * The eight functions are those that the JIT asks for; each mirrors the public CUDA runtime function
 * of its name. Nothing is loaded or launched here: a launch is handed to `launch_hook`. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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
