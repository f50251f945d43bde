/* Answers as NVIDIA's libnvidia-ml.so.1 gives them, from a file that a test writes: FAKE_NVML names it.
 *
 * A line is `OWNER KEY VALUE`; the owner is a device's number, or `system`. It is read anew for each question, so that what
 * devices say can change. What is not in it is NVML_ERROR_NOT_SUPPORTED; `error` of a device is what getting its handle
 * answers, `lost` what everything else about it does. FAKE_NVML_LOG names a file that is told of each nvmlInit.
 * After a fork the library works only in the process that initialised it, as NVIDIA's may.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10 };
enum { MOST = 64, TEXT = 256 };
typedef unsigned long long u64;
typedef struct { int number; } *Device;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { Device device; u64 type, data; unsigned gpu_instance, compute_instance; } Event;

static int numbers[MOST];
static pid_t owner;
static int told[MOST]; /* events */

static int find(const char *who, const char *key, char *value)
{
    char line[4096], name[TEXT], word[TEXT];
    int at, found = 0;
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    while (file && !found && fgets(line, sizeof line, file))
        if (sscanf(line, "%255s %255s %n", name, word, &at) == 2 && !strcmp(name, who) && !strcmp(word, key)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, TEXT, "%s", line + at);
            found = 1;
        }
    if (file) fclose(file);
    return found;
}

static int text(Device device, const char *key, char *value)
{
    char who[16];
    if (owner != getpid()) return UNINITIALIZED;
    snprintf(who, sizeof who, "%d", device->number);
    if (find(who, "lost", value)) return atoi(value);
    return find(who, key, value) ? SUCCESS : NOT_SUPPORTED;
}

static int number(Device device, const char *key, u64 *value)
{
    char word[TEXT];
    int code = text(device, key, word);
    if (!code) *value = strtoull(word, NULL, 0);
    return code;
}

static int small(Device device, const char *key, unsigned *value)
{
    u64 wide = 0;
    int code = number(device, key, &wide);
    if (!code) *value = (unsigned)wide;
    return code;
}

static int list(Device device, const char *key, u64 *values, int *count)
{
    char word[TEXT];
    int code = text(device, key, word);
    *count = 0;
    for (char *part = code ? NULL : strtok(word, ","); part; part = strtok(NULL, ",")) values[(*count)++] = strtoull(part, NULL, 0);
    return code;
}

int nvmlInitWithFlags(unsigned flags)
{
    char value[TEXT];
    const char *log = getenv("FAKE_NVML_LOG");
    FILE *file = log ? fopen(log, "a") : NULL;
    (void)flags;
    if (file) { fprintf(file, "nvmlInit %d\n", (int)getpid()); fclose(file); }
    if (find("system", "error", value)) return atoi(value);
    owner = getpid();
    return SUCCESS;
}
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case TIMEOUT: return "Timeout";
    case 15: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    char value[TEXT];
    if (owner != getpid()) return UNINITIALIZED;
    if (!find("system", "driver", value)) return NOT_SUPPORTED;
    snprintf(version, length, "%s", value);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    char who[16], value[TEXT];
    if (owner != getpid()) return UNINITIALIZED;
    for (*count = 0; *count < MOST; ++*count) {
        snprintf(who, sizeof who, "%u", *count);
        if (!find(who, "uuid", value)) break;
    }
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    char who[16], value[TEXT];
    unsigned count;
    int code = nvmlDeviceGetCount_v2(&count);
    if (code) return code;
    if (index >= count) return INVALID;
    snprintf(who, sizeof who, "%u", index);
    if (find(who, "error", value)) return atoi(value);
    numbers[index] = (int)index;
    *device = (Device)&numbers[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device)
{
    char value[TEXT];
    unsigned count;
    int code = nvmlDeviceGetCount_v2(&count);
    if (code) return code;
    for (unsigned i = 0; i < count; ++i) {
        char who[16];
        snprintf(who, sizeof who, "%u", i);
        if (find(who, "uuid", value) && !strcmp(value, uuid)) return nvmlDeviceGetHandleByIndex_v2(i, device);
    }
    return NOT_FOUND;
}

static int copy(Device device, const char *key, char *target, unsigned length)
{
    char value[TEXT];
    int code = text(device, key, value);
    if (!code) snprintf(target, length, "%s", value);
    return code;
}
int nvmlDeviceGetUUID(Device device, char *uuid, unsigned length) { return copy(device, "uuid", uuid, length); }
int nvmlDeviceGetName(Device device, char *name, unsigned length) { return copy(device, "name", name, length); }

int nvmlDeviceGetMemoryInfo(Device device, Memory *memory)
{
    int code = number(device, "total", &memory->total);
    if (!code) code = number(device, "used", &memory->used);
    memory->free = memory->total - memory->used;
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *memory)
{
    Memory plain;
    int code = number(device, "reserved", &memory->reserved);
    if (!code) code = nvmlDeviceGetMemoryInfo(device, &plain);
    if (!code) { memory->total = plain.total; memory->used = plain.used; memory->free = plain.free - memory->reserved; }
    return code;
}

int nvmlDeviceGetPciInfo_v3(Device device, Pci *pci)
{
    memset(pci, 0, sizeof *pci);
    return copy(device, "bus", pci->bus_id, sizeof pci->bus_id);
}

int nvmlDeviceGetMaxPcieLinkGeneration(Device device, unsigned *value) { return small(device, "pcie_generation", value); }
int nvmlDeviceGetMaxPcieLinkWidth(Device device, unsigned *value) { return small(device, "pcie_width", value); }
int nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned *value) { return small(device, "pcie_width_now", value); }
int nvmlDeviceGetPowerManagementLimit(Device device, unsigned *value) { return small(device, "power_limit", value); }
int nvmlDeviceGetApplicationsClock(Device device, int kind, unsigned *value) { return small(device, kind == 2 ? "memory_clock" : "sm_clock", value); }
int nvmlDeviceGetMaxClockInfo(Device device, int kind, unsigned *value) { return nvmlDeviceGetApplicationsClock(device, kind, value); }
int nvmlDeviceGetCurrentClocksEventReasons(Device device, u64 *value) { return number(device, "reasons", value); }
int nvmlDeviceGetClockInfo(Device device, int kind, unsigned *value) { (void)kind; return small(device, "clock_now", value); }
int nvmlDeviceGetComputeMode(Device device, unsigned *value) { return small(device, "compute_mode", value); }
int nvmlDeviceGetPowerUsage(Device device, unsigned *value) { return small(device, "power_now", value); }
int nvmlDeviceGetTemperature(Device device, int kind, unsigned *value) { (void)kind; return small(device, "temperature", value); }

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor)
{
    u64 parts[MOST];
    int count, code = list(device, "capability", parts, &count);
    if (!code) { *major = (int)parts[0]; *minor = (int)parts[1]; }
    return code;
}

int nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *pending)
{
    int code = small(device, "mig", now);
    *pending = *now;
    return code;
}

int nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, u64 *value)
{
    return kind == 1 && counter == 0 ? number(device, "ecc", value) : INVALID;
}

int nvmlDeviceGetRemappedRows(Device device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed)
{
    u64 parts[MOST];
    int count, code = list(device, "remapped", parts, &count);
    if (code) return code;
    *correctable = (unsigned)parts[0], *uncorrectable = (unsigned)parts[1];
    *pending = (unsigned)parts[2], *failed = (unsigned)parts[3];
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *room, Process *processes)
{
    u64 pids[MOST];
    int count, code = list(device, "pids", pids, &count);
    if (code) return code;
    if (count == 0) { *room = 0; return SUCCESS; }
    if ((int)*room < count || !processes) { *room = (unsigned)count; return SMALL; }
    memset(processes, 0, sizeof *processes * (size_t)count);
    for (int i = 0; i < count; ++i) processes[i].pid = (unsigned)pids[i], processes[i].used = 1ULL << 30;
    *room = (unsigned)count;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *state)
{
    unsigned links = 0;
    int code = small(device, "nvlinks", &links);
    *state = link < links;
    return code;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned *kind)
{
    (void)device, (void)link;
    *kind = 2; /* a switch */
    return SUCCESS;
}
int nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, unsigned *level)
{
    (void)other;
    return small(one, "topology", level);
}

int nvmlEventSetCreate(void **events) { *events = told; return owner == getpid() ? SUCCESS : UNINITIALIZED; }
int nvmlEventSetFree(void *events) { (void)events; return SUCCESS; }
int nvmlDeviceRegisterEvents(Device device, u64 kinds, void *events)
{
    (void)device, (void)events;
    return kinds == 8 ? SUCCESS : INVALID;
}
int nvmlEventSetWait_v2(void *events, Event *event, unsigned timeout_ms)
{
    u64 xids[MOST];
    int count;
    (void)events;
    for (int i = 0; i < MOST; ++i) {
        numbers[i] = i;
        if (list((Device)&numbers[i], "xids", xids, &count) || count <= told[i]) continue;
        memset(event, 0, sizeof *event);
        event->device = (Device)&numbers[i], event->type = 8, event->data = xids[told[i]++];
        return SUCCESS;
    }
    usleep(1000 * timeout_ms);
    return TIMEOUT;
}
