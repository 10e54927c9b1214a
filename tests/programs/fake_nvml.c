/* A stand-in for libnvidia-ml.so.1 with as many GPUs as FAKE_GPUS says (nvml.h has the real
 * signatures). FAKE_MIG names a GPU in MIG mode, with two instances and an empty slot between
 * them. FAKE_NVML=fail makes nvmlInit fail, FAKE_NVML=wedged makes it never return. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, MIG_BASE = 1000 };

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int index_of(void *handle) { return (int)(intptr_t)handle - 1; }

int nvmlInit_v2(void) {
    const char *mood = getenv("FAKE_NVML");
    if (mood && !strcmp(mood, "wedged"))
        for (;;) pause();
    return mood && !strcmp(mood, "fail") ? DRIVER_NOT_LOADED : SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    return code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Not Supported";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)number("FAKE_GPUS", 0);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(intptr_t)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    int index = index_of(handle);
    if (index >= MIG_BASE) snprintf(text, size, "MIG-aaaa-%d", index - MIG_BASE);
    else snprintf(text, size, "GPU-%d000-bbbb", index);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    snprintf(text, size, index_of(handle) >= MIG_BASE ? "NVIDIA H100 MIG 1g.10gb" : "NVIDIA H100");
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *mode, unsigned *pending) {
    if (number("FAKE_MIG", -1) < 0) return NOT_SUPPORTED;
    *mode = *pending = index_of(handle) == number("FAKE_MIG", -1);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    (void)handle;
    *count = 3;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned slot, void **instance) {
    (void)handle;
    if (slot == 1) return NOT_FOUND;
    *instance = (void *)(intptr_t)(MIG_BASE + slot + 1);
    return SUCCESS;
}
