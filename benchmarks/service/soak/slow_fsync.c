/* Preloaded library whose fsync and fdatasync take 0.4 s while the file named by SHARDTUNE_SLOW_FSYNC exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_if_slow(void) {
    const char *file = getenv("SHARDTUNE_SLOW_FSYNC");
    if (file && access(file, F_OK) == 0) usleep(400000);
}

int fsync(int descriptor) {
    int (*original)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_if_slow();
    return original(descriptor);
}

int fdatasync(int descriptor) {
    int (*original)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_if_slow();
    return original(descriptor);
}
