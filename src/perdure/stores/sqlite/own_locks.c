/* Locks of our SQLite files that belong to the open file, not to the process.
 *
 * SQLite locks its files with POSIX locks. These belong to the process and the file: when anything in the process
 * closes any descriptor of the file (another SQLite library, a copy made for a backup), all of them are gone, another
 * process removes the log as that of nobody, and what is committed from then on is lost. Locks of an open file
 * description (F_OFD_*) go when that one is closed. SQLite lets its system calls be replaced, so these are.
 *
 * Within the process SQLite counts its locks by file, not by connection, so all connections to a file lock it through
 * one descriptor, as if the locks were still the process's.
 *
 * The table of system calls is the process's: others use it for files of theirs, whose locks must stay as they are.
 * So only files whose path was told to us are treated in this way, by their descriptors.
 *
 * In C, because a callback into Python could be interrupted and would have to answer that the file is locked.
 * Nothing here needs Python: the functions are found by their addresses.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

typedef struct { dev_t dev; ino_t ino; int known; } Identity;

typedef struct Database {
    struct Database *next;
    Identity files[4];   /* those that are open: the database, its log, the log's index, a journal */
    int open[4];         /* how many descriptors, of each of its files */
    int locks[4];        /* the one by which each file is locked, while any is open */
    int split;           /* a file was opened that is not the one of the same name that was open */
    int inherited;       /* it was open when this process was forked: its connections are those of the parent */
    size_t length;
    char path[];
} Database;

#define DESCRIPTORS (1 << 20)
static Database *of[DESCRIPTORS];     /* whose a descriptor is; those above are nobody's */
static unsigned char part[DESCRIPTORS]; /* of which of its files */
static Database parents;          /* of a descriptor that was the parent's */
static int highest = -1;          /* no descriptor above this one was ever ours */
static int null_file = -1;

#define BUCKETS 1024
static Database *databases[BUCKETS];
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static unsigned bucket(const char *path, size_t length)
{
    unsigned hash = 2166136261u;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)path[i]) * 16777619u;
    return hash % BUCKETS;
}

static Database *find(const char *path, size_t length)
{
    for (Database *at = databases[bucket(path, length)]; at; at = at->next)
        if (at->length == length && !memcmp(at->path, path, length)) return at;
    return NULL;
}

/* What the names of a database's files end with; of those after the first three none outlives a transaction. */
static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};
#define KEPT 3

/* The database that a file belongs to, and which of its files it is; with the guard held. */
static Database *owner(const char *path, int *which)
{
    size_t length = strlen(path);
    for (*which = 0; *which < 4; ++*which) {
        size_t end = strlen(suffixes[*which]);
        Database *found;
        if (length > end && !strcmp(path + length - end, suffixes[*which]) && (found = find(path, length - end)))
            return found;
    }
    return NULL;
}

/* Only the number of the inode is asked for: asking for times makes the next write of the file slower. */
static Identity identity(int dir, const char *path, int flags)
{
    struct statx s;
    Identity none = {0, 0, 0};
    if (statx(dir, path, flags | AT_STATX_DONT_SYNC, STATX_INO, &s)) return none;
    return (Identity){makedev(s.stx_dev_major, s.stx_dev_minor), s.stx_ino, 1};
}

static int same(Identity a, Identity b) { return a.known && b.known && a.dev == b.dev && a.ino == b.ino; }

/* -- what SQLite calls ------------------------------------------------------------------------------------------- */

/* With the guard held: a descriptor of ours is open. */
static void opened(Database *database, int which, int fd)
{
    Identity file = identity(fd, "", AT_EMPTY_PATH);
    if (database->open[which] && !same(database->files[which], file)) database->split = 1;
    if (!database->open[which]++) {
        database->files[which] = file;
        database->locks[which] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    of[fd] = database;
    part[fd] = which;
    if (fd > highest) highest = fd;
}

/* With the guard held: it is so no longer. */
static void closed(Database *database, int which)
{
    if (--database->open[which]) return;
    if (database->locks[which] >= 0) close(database->locks[which]);
    memset(&database->files[which], 0, sizeof(Identity));
    if (!database->open[0]) database->split = 0;
}

static int own_open(const char *path, int flags, int mode)
{
    int which, fd = open(path, flags, mode);
    if (fd < 0 || fd >= DESCRIPTORS) return fd;
    pthread_mutex_lock(&guard);
    Database *database = owner(path, &which);
    of[fd] = NULL;
    if (database && !database->inherited) opened(database, which, fd);
    pthread_mutex_unlock(&guard);
    return fd;
}

static int own_close(int fd)
{
    if (fd >= 0 && fd < DESCRIPTORS && of[fd]) {
        pthread_mutex_lock(&guard);
        if (of[fd] != &parents) closed(of[fd], part[fd]);
        of[fd] = NULL;
        pthread_mutex_unlock(&guard);
    }
    return close(fd);
}

static int own_unlink(const char *path)
{
    int which, refused;
    pthread_mutex_lock(&guard);
    Database *database = owner(path, &which);
    refused = database && database->inherited;
    pthread_mutex_unlock(&guard);
    if (refused) { errno = EPERM; return -1; }
    return unlink(path);
}

static int own_fcntl(int fd, int command, ...)
{
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    Database *whose = fd >= 0 && fd < DESCRIPTORS ? of[fd] : NULL;
    if (!whose || (command != F_SETLK && command != F_SETLKW && command != F_GETLK))
        return fcntl(fd, command, argument);
    if (whose == &parents) { errno = EACCES; return -1; }
    struct flock *lock = argument;
    lock->l_pid = 0;
    /* A file that was opened under the name of another one has locks of its own; so has one that could not be shared. */
    if (!whose->split && whose->locks[part[fd]] >= 0) fd = whose->locks[part[fd]];
    return fcntl(fd, command == F_SETLK ? F_OFD_SETLK : command == F_SETLKW ? F_OFD_SETLKW : F_OFD_GETLK, lock);
}

/* The child of a fork has descriptors of the same open files, and its copy of SQLite believes in their locks. They are
 * replaced, so that the locks end with the parent, and no connection of the parent's can do anything in the child. */
static void in_child(void)
{
    pthread_mutex_init(&guard, NULL);
    for (int fd = 0; fd <= highest; fd++)
        if (of[fd] && of[fd] != &parents) {
            Database *database = of[fd];
            dup3(null_file, fd, O_CLOEXEC);
            if (database->locks[part[fd]] >= 0) close(database->locks[part[fd]]);
            database->locks[part[fd]] = -1;
            database->inherited = 1;
            of[fd] = &parents;
        }
}

/* -- what the store calls ---------------------------------------------------------------------------------------- */

void *const perdure_system_calls[] = {
    (void *)"open", (void *)own_open, (void *)"close", (void *)own_close,
    (void *)"unlink", (void *)own_unlink, (void *)"fcntl", (void *)own_fcntl, NULL,
};

/* Once, before anything else: 0, or an error number where this system has no such locks. */
int perdure_prepare(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    null_file = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_file < 0) return errno;
    if (fcntl(null_file, F_OFD_GETLK, &lock) && errno != EBADF) return errno;
    return pthread_atfork(NULL, NULL, in_child);
}

/* The path of a database, as SQLite will open it: 0, EBUSY in the child of a fork before which it was open, ENOMEM. */
int perdure_own(const char *path)
{
    int result = 0;
    size_t length = strlen(path);
    pthread_mutex_lock(&guard);
    Database *database = find(path, length);
    if (database) {
        if (database->inherited) result = EBUSY;
    } else if ((database = calloc(1, sizeof(Database) + length + 1))) {
        unsigned at = bucket(path, length);
        memcpy(database->path, path, length);
        database->length = length;
        database->next = databases[at];
        databases[at] = database;
    } else result = ENOMEM;
    pthread_mutex_unlock(&guard);
    return result;
}

/* Whether its files are still those that were opened: 0, or the number of the first after a given one that is not,
 * counted from 1. */
int perdure_astray(const char *path, int after)
{
    char name[4096];
    Database now = {0};
    size_t length = strlen(path);
    pthread_mutex_lock(&guard);
    Database *database = find(path, length);
    if (database) now = *database;
    pthread_mutex_unlock(&guard);
    if (length + 5 > sizeof name) return 0;
    memcpy(name, path, length);
    for (int i = after; i < KEPT; i++) {
        strcpy(name + length, suffixes[i]);
        if (now.files[i].known && !same(now.files[i], identity(AT_FDCWD, name, 0))) return i + 1;
    }
    /* Asked last: a database that was replaced is more than a log that was, for nobody else has what is in ours. */
    return now.split && after < 2 ? 2 : 0;
}
