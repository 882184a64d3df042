/* Records what a process does to the files below a folder, in the order in which it does it.
 *
 * Preloaded into a process (LD_PRELOAD), it passes every call on and appends one record to the file
 * KEYRUN_IO_LOG for each call that changes a file below the folder KEYRUN_IO_DIR, or makes it
 * durable. A record is written with one call on a descriptor that appends, so the records of
 * several processes stay whole and in order. A sync is recorded after it returned: whoever acts on
 * it comes later in the log.
 *
 * A record: kind, flags, offset, length of the path, length of the data; then path and data.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, TRUNCATE = 2, SYNC = 3, CREATE = 4, RENAME = 5, UNLINK = 6, MAPPED = 7, MKDIR = 8 };

struct header {
    uint32_t kind, flags;
    uint64_t offset;
    uint32_t path_length, data_length;
};

static int log_fd = -1;
static char root[PATH_MAX];
static size_t root_length;

__attribute__((constructor)) static void begin(void)
{
    const char *log = getenv("KEYRUN_IO_LOG"), *folder = getenv("KEYRUN_IO_DIR");
    if (!log || !folder || !realpath(folder, root))
        return;
    root_length = strlen(root);
    int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    /* Out of the way of descriptors that are counted on to be small. */
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 500);
    syscall(SYS_close, fd);
}

static const char *below(const char *path)
{
    if (log_fd < 0 || strncmp(path, root, root_length) || path[root_length] != '/')
        return NULL;
    return path + root_length + 1;
}

static void record(uint32_t kind, uint32_t flags, uint64_t offset, const char *path,
                   const struct iovec *parts, int count, size_t length)
{
    struct header header = {kind, flags, offset, strlen(path), length};
    char *whole = malloc(sizeof header + header.path_length + length), *at = whole;
    memcpy(at, &header, sizeof header);
    at += sizeof header;
    memcpy(at, path, header.path_length);
    at += header.path_length;
    for (int i = 0; i < count && length; i++) {
        size_t taken = parts[i].iov_len < length ? parts[i].iov_len : length;
        memcpy(at, parts[i].iov_base, taken);
        at += taken;
        length -= taken;
    }
    if (syscall(SYS_write, log_fd, whole, at - whole) != at - whole)
        abort(); /* a log with holes would prove nothing */
    free(whole);
}

/* The path of a descriptor, if it is below the folder: "" is the folder itself. */
static const char *name_of(int fd, char *buffer)
{
    char link[64];
    if (log_fd < 0 || fd < 0)
        return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    if (length < 0)
        return NULL;
    buffer[length] = 0;
    return strcmp(buffer, root) ? below(buffer) : "";
}

static const char *full_name(int folder, const char *path, char *buffer)
{
    char parent[PATH_MAX], real[PATH_MAX];
    if (log_fd < 0 || folder != AT_FDCWD || strlen(path) >= PATH_MAX)
        return NULL;
    strcpy(parent, path);
    char *slash = strrchr(parent, '/');
    const char *last = slash ? path + (slash - parent) + 1 : path;
    if (slash)
        *(slash == parent ? slash + 1 : slash) = 0;
    if (!realpath(slash ? parent : ".", real))
        return NULL;
    if (snprintf(buffer, PATH_MAX, "%s/%s", real, last) >= PATH_MAX)
        return NULL;
    return below(buffer);
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void wrote(int fd, off_t offset, const struct iovec *parts, int count, ssize_t written)
{
    char buffer[PATH_MAX];
    const char *path;
    int saved = errno;
    if (written > 0 && (path = name_of(fd, buffer)))
        record(WRITE, !!(fcntl(fd, F_GETFL) & (O_DSYNC | O_SYNC)), offset, path, parts, count, written);
    errno = saved;
}

/* Where a write without an offset went, seen after it. */
static off_t before(int fd, ssize_t written)
{
    int saved = errno;
    off_t offset = log_fd < 0 || written <= 0 ? 0 : lseek(fd, 0, SEEK_CUR) - written;
    errno = saved;
    return offset;
}

ssize_t write(int fd, const void *data, size_t length)
{
    REAL(write);
    ssize_t written = real(fd, data, length);
    struct iovec part = {(void *)data, length};
    wrote(fd, before(fd, written), &part, 1, written);
    return written;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    REAL(writev);
    ssize_t written = real(fd, parts, count);
    wrote(fd, before(fd, written), parts, count, written);
    return written;
}

#define PWRITE(name, offset_type) \
    ssize_t name(int fd, const void *data, size_t length, offset_type offset) \
    { \
        REAL(name); \
        ssize_t written = real(fd, data, length, offset); \
        struct iovec part = {(void *)data, length}; \
        wrote(fd, offset, &part, 1, written); \
        return written; \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PWRITEV(name, offset_type) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset_type offset) \
    { \
        REAL(name); \
        ssize_t written = real(fd, parts, count, offset); \
        wrote(fd, offset, parts, count, written); \
        return written; \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define FTRUNCATE(name, offset_type) \
    int name(int fd, offset_type length) \
    { \
        REAL(name); \
        char buffer[PATH_MAX]; \
        const char *path; \
        int result = real(fd, length), saved = errno; \
        if (!result && (path = name_of(fd, buffer))) \
            record(TRUNCATE, 0, length, path, NULL, 0, 0); \
        errno = saved; \
        return result; \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

#define SYNCING(name) \
    int name(int fd) \
    { \
        REAL(name); \
        char buffer[PATH_MAX]; \
        const char *path; \
        int result = real(fd), saved = errno; \
        if (!result && (path = name_of(fd, buffer))) \
            record(SYNC, 0, 0, path, NULL, 0, 0); \
        errno = saved; \
        return result; \
    }
SYNCING(fsync)
SYNCING(fdatasync)

static void opened(int folder, const char *path, int flags, int fd, int existed)
{
    char buffer[PATH_MAX];
    const char *name;
    int saved = errno;
    if (fd >= 0 && (name = full_name(folder, path, buffer))) {
        if (!existed)
            record(CREATE, 0, 0, name, NULL, 0, 0);
        else if (flags & O_TRUNC)
            record(TRUNCATE, 0, 0, name, NULL, 0, 0);
    }
    errno = saved;
}

static int is_there(int folder, const char *path)
{
    struct stat info;
    int saved = errno, result = fstatat(folder, path, &info, AT_SYMLINK_NOFOLLOW);
    errno = saved;
    return !result;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int existed = !(flags & O_CREAT) || is_there(AT_FDCWD, path); \
        int fd = real(path, flags, mode); \
        opened(AT_FDCWD, path, flags, fd, existed); \
        return fd; \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int existed = !(flags & O_CREAT) || is_there(folder, path); \
        int fd = real(folder, path, flags, mode); \
        opened(folder, path, flags, fd, existed); \
        return fd; \
    }
OPENAT(openat)
OPENAT(openat64)

int rename(const char *from, const char *to)
{
    REAL(rename);
    char buffer[PATH_MAX], second[PATH_MAX];
    const char *name, *target;
    int result = real(from, to), saved = errno;
    if (!result && (name = full_name(AT_FDCWD, from, buffer)) &&
        (target = full_name(AT_FDCWD, to, second))) {
        struct iovec part = {(void *)target, strlen(target)};
        record(RENAME, 0, 0, name, &part, 1, part.iov_len);
    }
    errno = saved;
    return result;
}

int unlink(const char *path)
{
    REAL(unlink);
    char buffer[PATH_MAX];
    const char *name = full_name(AT_FDCWD, path, buffer);
    int result = real(path), saved = errno;
    if (!result && name)
        record(UNLINK, 0, 0, name, NULL, 0, 0);
    errno = saved;
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    REAL(mkdir);
    char buffer[PATH_MAX];
    const char *name;
    int result = real(path, mode), saved = errno;
    if (!result && (name = full_name(AT_FDCWD, path, buffer)))
        record(MKDIR, 0, 0, name, NULL, 0, 0);
    errno = saved;
    return result;
}

/* Writes through a map cannot be seen. That one was made can. */
#define MAPPING(name, offset_type) \
    void *name(void *address, size_t length, int protection, int flags, int fd, offset_type offset) \
    { \
        REAL(name); \
        char buffer[PATH_MAX]; \
        const char *path; \
        void *result = real(address, length, protection, flags, fd, offset); \
        int saved = errno; \
        if (result != MAP_FAILED && (protection & PROT_WRITE) && (flags & MAP_SHARED) && \
            (path = name_of(fd, buffer))) \
            record(MAPPED, 0, 0, path, NULL, 0, 0); \
        errno = saved; \
        return result; \
    }
MAPPING(mmap, off_t)
MAPPING(mmap64, off64_t)
