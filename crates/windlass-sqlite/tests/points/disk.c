// A disk that a test controls: preloaded into the test program, between SQLite and the kernel.
//
// Every call that changes a file below a folder is counted, and recorded with its data before it
// returns. A call can fail, or kill the process instead. The test sets what happens, and reads the
// counts, in a file that both map (`disk.rs` has the same layout).

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FOLDER_AT = 256, FOLDER_MAX = 3072 };

// The kinds of calls, and their bits in `faulty_kinds`.
enum { WRITE = 1, TRUNCATE = 2, SYNC = 4, CREATE = 8, UNLINK = 16, FAILED_SYNC = 32 };

struct control {
    uint64_t watches;        // whether anything is counted at all
    uint64_t records;        // whether calls are recorded
    uint64_t lies;           // whether syncs return at once
    uint64_t calls;          // how many calls there were
    uint64_t faulty_kinds;   // the kinds of calls that may fail
    uint64_t faulty_from;    // the first of them that fails, counted from 1; 0 is none
    uint64_t faulty_count;   // how many of them fail
    uint64_t error;          // what they fail with
    uint64_t matched;        // how many calls were of a kind that may fail
    uint64_t failed;         // how many calls failed
    uint64_t reserve_error;  // what opening the reserve fails with; 0 is not at all
    uint64_t tears;          // whether the first failing write writes its first half
    uint64_t killed_at;      // the call that kills the process instead, counted from 1; 0 is none
};

struct record {
    uint64_t kind, name_bytes, offset, data_bytes;
};

static struct control *control;
static const char *folder;
static int journal = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// The function of the C library that this library stands in front of.
#define NEXT(name)                                                        \
    ({                                                                    \
        static __typeof__(&name) next;                                    \
        if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name);     \
        next;                                                             \
    })

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("WINDLASS_TEST_DISK");
    const char *records = getenv("WINDLASS_TEST_DISK_RECORDS");
    if (!path || !records) return;
    int file = NEXT(open64)(path, O_RDWR);
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || map == MAP_FAILED) abort();
    close(file);
    journal = NEXT(open64)(records, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (journal < 0) abort();
    folder = (const char *)map + FOLDER_AT;
    control = map;
}

// The name of a file in the folder, or NULL if it is elsewhere or does not count. The folder itself
// is "".
static const char *in_folder(const char *path) {
    size_t bytes = strlen(folder);
    if (bytes == 0 || strncmp(path, folder, bytes) != 0) return NULL;
    if (path[bytes] == 0) return "";
    if (path[bytes] != '/') return NULL;
    const char *name = path + bytes + 1;
    const char *ending = strrchr(name, '-');
    // The index of the WAL is rebuilt after a crash, and the reserve has no content.
    if (ending && (!strcmp(ending, "-shm") || !strcmp(ending, "-reserve"))) return NULL;
    return name;
}

static const char *name_of(int file, char *path) {
    if (!control || !control->watches) return NULL;
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t bytes = readlink(link, path, FOLDER_MAX - 1);
    if (bytes < 0) return NULL;
    path[bytes] = 0;
    return in_folder(path);
}

static void append(const void *bytes, size_t count) {
    while (count > 0) {
        ssize_t written = NEXT(write)(journal, bytes, count);
        if (written <= 0) abort();
        bytes = (const char *)bytes + written;
        count -= (size_t)written;
    }
}

static void record(uint64_t kind, const char *name, uint64_t offset, const void *data, uint64_t bytes) {
    control->calls++;
    if (!control->records) return;
    struct record head = {kind, strlen(name), offset, bytes};
    append(&head, sizeof head);
    append(name, head.name_bytes);
    append(data, bytes);
}

// Counts a call. Returns whether it fails.
static int fails(uint64_t kind) {
    if (control->killed_at && control->calls + 1 >= control->killed_at) {
        kill(getpid(), SIGKILL);
        pause();
    }
    if (!(control->faulty_kinds & kind)) return 0;
    uint64_t number = ++control->matched, first = control->faulty_from;
    if (first == 0 || number < first || number - first >= control->faulty_count) return 0;
    control->failed++;
    errno = (int)control->error;
    return 1;
}

typedef ssize_t positioned_write(int, const void *, size_t, off_t);

static ssize_t write_at(positioned_write *call, int file, const void *data, size_t bytes, off_t offset) {
    char path[FOLDER_MAX];
    const char *name = name_of(file, path);
    if (!name) return call(file, data, bytes, offset);
    pthread_mutex_lock(&mutex);
    ssize_t written = -1;
    if (!fails(WRITE)) {
        written = call(file, data, bytes, offset);
    } else if (control->tears && control->failed == 1 && bytes > 1) {
        written = call(file, data, bytes / 2, offset);
    }
    if (written > 0) record(WRITE, name, (uint64_t)offset, data, (uint64_t)written);
    pthread_mutex_unlock(&mutex);
    return written;
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset) {
    return write_at(NEXT(pwrite), file, data, bytes, offset);
}

ssize_t pwrite64(int file, const void *data, size_t bytes, off_t offset) {
    return write_at(NEXT(pwrite64), file, data, bytes, offset);
}

static ssize_t write_here(int file, const void *data, size_t bytes, off_t offset) {
    (void)offset;
    return NEXT(write)(file, data, bytes);
}

ssize_t write(int file, const void *data, size_t bytes) {
    return write_at(write_here, file, data, bytes, lseek(file, 0, SEEK_CUR));
}

static int truncate_to(int (*call)(int, off_t), int file, off_t bytes) {
    char path[FOLDER_MAX];
    const char *name = name_of(file, path);
    if (!name) return call(file, bytes);
    pthread_mutex_lock(&mutex);
    int done = fails(TRUNCATE) ? -1 : call(file, bytes);
    if (done == 0) record(TRUNCATE, name, (uint64_t)bytes, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return done;
}

int ftruncate(int file, off_t bytes) { return truncate_to(NEXT(ftruncate), file, bytes); }

int ftruncate64(int file, off_t bytes) { return truncate_to(NEXT(ftruncate64), file, bytes); }

static int sync_file(int (*call)(int), int file) {
    char path[FOLDER_MAX];
    const char *name = name_of(file, path);
    if (!name) return control && control->lies ? 0 : call(file);
    pthread_mutex_lock(&mutex);
    int done = fails(SYNC) ? -1 : control->lies ? 0 : call(file);
    int error = errno;
    record(done == 0 ? SYNC : FAILED_SYNC, name, 0, NULL, 0);
    errno = error;
    pthread_mutex_unlock(&mutex);
    return done;
}

int fsync(int file) { return sync_file(NEXT(fsync), file); }

int fdatasync(int file) { return sync_file(NEXT(fdatasync), file); }

int unlink(const char *path) {
    const char *name = control && control->watches ? in_folder(path) : NULL;
    if (!name) return NEXT(unlink)(path);
    pthread_mutex_lock(&mutex);
    int done = fails(UNLINK) ? -1 : NEXT(unlink)(path);
    if (done == 0) record(UNLINK, name, 0, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return done;
}

static int open_file(int (*call)(const char *, int, ...), const char *path, int flags, mode_t mode) {
    const char *ending = strrchr(path, '-');
    if (control && control->reserve_error && ending && !strcmp(ending, "-reserve")) {
        // The disk is full only once a write has failed.
        errno = control->failed ? (int)control->reserve_error : EPERM;
        return -1;
    }
    const char *name = control && control->watches && flags & O_CREAT ? in_folder(path) : NULL;
    if (!name || access(path, F_OK) == 0) return call(path, flags, mode);
    pthread_mutex_lock(&mutex);
    int file = fails(CREATE) ? -1 : call(path, flags, mode);
    if (file >= 0) record(CREATE, name, 0, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return file;
}

#define OPEN(name)                                                        \
    int name(const char *path, int flags, ...) {                          \
        va_list rest;                                                     \
        va_start(rest, flags);                                            \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                     \
        return open_file(NEXT(name), path, flags, mode);                  \
    }

OPEN(open)
OPEN(open64)
