/* Locks of our SQLite files that belong to the open file, not to the process.
 *
 * SQLite locks its files with POSIX locks. These belong to the process and the file: when anything in the process
 * closes any descriptor of the file (another SQLite library, a copy made for a backup), all of them are gone, another
 * process removes the log as that of nobody, and what is committed from then on is lost. Locks of an open file
 * description (F_OFD_*) go when that one is closed. SQLite lets its system calls be replaced, so these are.
 *
 * Within the process SQLite counts its locks by file, not by connection, so all connections to a file lock it through
 * one descriptor, as if the locks were still the process's. It is of an open file of its own: SQLite maps the index, a
 * child of a fork keeps what is mapped, and with it would keep the locks for as long as it lives.
 *
 * The table of system calls is the process's: others use it for files of theirs, whose locks must stay as they are.
 * So only files whose path was told to us are treated in this way, by their descriptors.
 *
 * Somebody may remove the log while it is open. Then whoever opens the database next would begin another one, without
 * what only the first has, and the two could never be brought together. So whoever has a log open says which one, by a
 * lock on the database at a place of its own, and no log is opened beside another one that is in use; nor is an index.
 * And whoever has a log says whose it is, by a lock on the log: it may be the database that was replaced.
 *
 * And another SQLite library has only the locks of its process, which it may lose in the middle of a transaction or
 * while it moves the log into the database; what we write then goes into pages that it believes to be its own. So
 * nobody but us writes, checkpoints or recovers while we have the index open: we hold shared locks where such a library
 * locks for that, and do so among ourselves elsewhere.
 *
 * And another SQLite library in this very process has only POSIX locks, which whatever we close of the same file would
 * drop. So a descriptor of a file that SQLite locks is closed only while a lock of ours keeps everybody else from having
 * one; until that can be had it is kept, without a lock, and is the first to be taken when the file is opened again.
 *
 * In C, because a callback into Python could be interrupted and would have to answer that the file is locked.
 * Nothing here needs Python: the functions are found by their addresses.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

typedef struct { dev_t dev; ino_t ino; int known; struct statx_timestamp changed; } Identity;

#define KEPT 3           /* so many of a database's files outlive a transaction */

/* The beginning of the index of a log, as SQLite writes it: all in the order of this machine, but for the salt. */
typedef struct {
    uint32_t version, unused, change;
    uint8_t init, big;
    uint16_t page;
    uint32_t frames, pages, sums[2];
    unsigned char salt[8];
    uint32_t own[2];
} Header;

typedef struct {
    Header first, second;      /* the same, unless somebody is writing it */
    uint32_t moved, marks[5];  /* so many pages of the log are in the database */
    unsigned char locks[8];
    uint32_t moving;           /* so many are, or are about to be */
} Index;

typedef struct { uint32_t known, moved; unsigned char salt[8]; } Moved;

static Moved moved(const Index *index)
{
    Moved found = {index->moved == index->moving, index->moved, {0}};
    memcpy(found.salt, index->first.salt, sizeof found.salt);
    return found;
}

typedef struct Database {
    struct Database *next;
    Identity files[4];   /* those that are open: the database, its log, the log's index, a journal */
    int open[4];         /* how many descriptors, of each of its files */
    int locks[4];        /* the one by which each file is locked, while any is open */
    Identity left[4];    /* those that were open last */
    int split;           /* a file was opened that is not the one of the same name that was open */
    int marked[KEPT];    /* others are told which one is ours, of the log and its index */
    Moved moved;         /* what of the log was in the database when all was well last */
    uint32_t frames;     /* so many pages of the log were committed then, */
    unsigned char salt[8]; /* of the log that began with this */
    uint64_t seen;       /* what the database looked like then; 0 when that is not known */
    int refused;         /* a log was not opened, because others have another one */
    int reserved;        /* others are kept from writing to it */
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

/* Of the log only the number of its inode is asked for: asking for times makes the next write of a file slower. The
 * database itself is not written by a commit. */
static Identity identity(int dir, const char *path, int flags, int which)
{
    struct statx s;
    Identity none = {0};
    if (statx(dir, path, flags | AT_STATX_DONT_SYNC, which ? STATX_INO : STATX_INO | STATX_MTIME, &s)) return none;
    return (Identity){makedev(s.stx_dev_major, s.stx_dev_minor), s.stx_ino, 1, s.stx_mtime};
}

static int same(Identity a, Identity b) { return a.known && b.known && a.dev == b.dev && a.ino == b.ino; }

/* -- locks on the database, by the descriptor that all connections share ------------------------------------------ */

#define PENDING ((off_t)0x40000000)   /* SQLite's: held by a writer, it keeps everybody else from opening the database */
#define SHARED (PENDING + 2)          /* SQLite's: held by everybody who has it open */
#define SHARED_SIZE 510
#define PLACES ((off_t)1 << 61)       /* ours: one for each log there could be, far behind the end, and for each index */

static int lock(int fd, short type, off_t from, off_t length)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = from, .l_len = length};
    return fcntl(fd, F_OFD_SETLK, &lock) ? errno : 0;
}

/* Whether another process has a lock there. */
static int locked(int fd, off_t from, off_t length)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = length};
    return !fcntl(fd, F_OFD_GETLK, &lock) && lock.l_type != F_UNLCK;
}

#define INDEX 2
#define WRITING ((off_t)120)        /* SQLite's, in the index: held by a writer, and behind it by checkpoints and recovery */
#define WRITING_SIZE 3
#define LOCKS_SIZE 9                /* all that SQLite ever locks in the index begins there */
#define ELSEWHERE ((off_t)1 << 40)  /* where we lock for these instead: so far behind */

/* Whether nobody but us may write, as long as the index is open: not while another library does. */
static int reserve(int fd) { return !lock(fd, F_RDLCK, WRITING, WRITING_SIZE); }

#define OWNER KEPT       /* the places in a log, or an index, that say whose it is */
static off_t places(int which) { return which * PLACES; }
static off_t place(int which, Identity file) { return places(which) + (off_t)(file.ino & (PLACES - 1)); }

/* Whether another process has said there that it is another file than this one, which may be none. */
static int others_say_another(int fd, int which, Identity file)
{
    off_t first = places(which), at = place(which, file), end = first + (PLACES - 1);
    if (!file.known) return locked(fd, first, PLACES);
    return (at > first && locked(fd, first, at - first)) || (at < end && locked(fd, at + 1, end - at));
}

/* With the guard held: whether anybody, this process included, has another one than the one that is there now. */
static int another(const Database *database, int which, Identity there)
{
    if (!which || which >= KEPT || !database->open[0] || database->locks[0] < 0) return 0;
    if (database->marked[which]) return !same(database->files[which], there);
    return others_say_another(database->locks[0], which, there);
}

static void mark(Database *database, int which, int on)
{
    if (!which || which >= KEPT || database->marked[which] == on || database->locks[0] < 0) return;
    lock(database->locks[0], on ? F_RDLCK : F_UNLCK, place(which, database->files[which]), 1);
    lock(database->locks[which], on ? F_RDLCK : F_UNLCK, place(OWNER, database->files[0]), 1);
    database->marked[which] = on;
}

/* -- descriptors that may not be closed yet ---------------------------------------------------------------------- */

typedef struct { int fd, access, which; dev_t dev; ino_t ino; } Parked;

static Parked *parked;
static int parked_count, parked_room, parked_next;

/* Only these are ever locked by SQLite, whoever's it is: not a log, nor a journal. */
static int lockable(int which) { return which == 0 || which == INDEX; }

/* Whether it is still what it was: somebody may have closed all descriptors there are, and others have the number now. */
static int still(const Parked *one, struct stat *s)
{
    return !fstat(one->fd, s) && s->st_dev == one->dev && s->st_ino == one->ino;
}

/* With the guard held: a descriptor of this file that nobody uses; -1 when there is none. */
static int take(Identity file, int access)
{
    struct stat s;
    for (int i = parked_count - 1; i >= 0 && file.known; i--) {
        Parked one = parked[i];
        /* What is a standard stream's number is not for SQLite, which would close it. */
        if (one.ino != file.ino || one.dev != file.dev || one.access != access || one.fd < 3) continue;
        parked[i] = parked[--parked_count];
        if (still(&one, &s)) return one.fd;
    }
    return -1;
}

/* Keep everybody else from having any lock there that SQLite knows: 0 when nobody has one. */
static int lock_all(int fd, int which)
{
    return lock(fd, F_WRLCK, which ? WRITING : PENDING, which ? LOCKS_SIZE : SHARED_SIZE + 2);
}

/* With the guard held, of a file that nobody in this process has a lock on, and nobody can get one of: close those that
 * are parked, but for the one that sees to that, whose own lock goes after those of this process. */
static void close_parked(dev_t dev, ino_t ino, int keeper)
{
    struct stat s;
    for (int i = 0; i < parked_count; i++)
        if (parked[i].dev == dev && parked[i].ino == ino) {
            if (parked[i].fd != keeper && still(&parked[i], &s)) close(parked[i].fd);
            parked[i--] = parked[--parked_count];
        }
}

/* With the guard held: close those of one file, unless that could take somebody's locks away. */
static void release(dev_t dev, ino_t ino)
{
    int keeper = -1;
    struct stat s;
    for (int i = 0; i < parked_count; i++) {
        if (parked[i].dev != dev || parked[i].ino != ino) continue;
        if (!still(&parked[i], &s)) { parked[i--] = parked[--parked_count]; continue; }
        if (keeper < 0 || parked[i].access == O_RDWR) keeper = i;
    }
    if (keeper < 0) return;
    Parked one = parked[keeper];
    if (lock_all(one.fd, one.which)) {
        /* Somebody could come in between without that lock. Of what no name leads to any more, or may not be written, it
         * is enough that nobody in this process has one now. */
        struct flock any = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (fstat(one.fd, &s) || (one.access == O_RDWR && s.st_nlink) || fcntl(one.fd, F_OFD_GETLK, &any)
            || (any.l_type != F_UNLCK && (s.st_nlink || any.l_pid == getpid()))) return;
    }
    close_parked(dev, ino, one.fd);
    close(one.fd);
}

/* With the guard held: all that may be closed by now. */
static void release_all(void)
{
    for (int i = 0, before; i < parked_count; i += parked_count == before) {
        before = parked_count;
        release(parked[i].dev, parked[i].ino);
    }
}

/* With the guard held: a descriptor that is not used any more. Its locks end. */
static void park(int fd, int which)
{
    struct stat s;
    int access = fcntl(fd, F_GETFL);
    if (!lockable(which) || access < 0 || fstat(fd, &s)) { close(fd); return; }
    lock(fd, F_UNLCK, 0, 0);
    if (parked_count == parked_room) {
        Parked *more = realloc(parked, (parked_room + 64) * sizeof *parked);
        if (!more) return;  /* never closed, which harms nobody's locks */
        parked = more;
        parked_room += 64;
    }
    parked[parked_count++] = (Parked){fd, access & O_ACCMODE, which, s.st_dev, s.st_ino};
}

/* With the guard held: what was parked of a file that we do not use any more, and of one other each time, which had to be
 * kept before. */
static void release_one_more(Identity file)
{
    if (file.known) release(file.dev, file.ino);
    if (!parked_count) return;
    Parked other = parked[parked_next++ % parked_count];
    release(other.dev, other.ino);
}

/* -- what SQLite calls ------------------------------------------------------------------------------------------- */

/* With the guard held: the same file once more, by an open file of its own. */
static int reopened(const Database *database, int fd, int which, Identity file)
{
    char name[32];
    int again = lockable(which) ? take(file, O_RDWR) : -1;
    if (again >= 0) return again;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    for (;;) {
        again = open(name, O_RDWR | O_CLOEXEC);
        if (again < 0) again = open(name, O_RDONLY | O_CLOEXEC);
        if (again < 0 && !which) {
            /* Where there is no such folder: by its own name, if that is still its name. */
            again = open(database->path, O_RDWR | O_CLOEXEC);
            if (again >= 0 && !same(file, identity(again, "", AT_EMPTY_PATH, which))) { park(again, which); again = -1; }
        }
        if (again >= 3) return again;
        int high = again < 0 || !lockable(which) ? fcntl(again < 0 ? fd : again, F_DUPFD_CLOEXEC, 3) : -1;
        /* Not for locks, because others close and reopen the standard streams; but it may not be closed either. */
        if (again >= 0) park(again, which);
        if (again < 0 || high >= 0) return high;
    }
}

/* With the guard held: a descriptor of ours is open. */
static void opened(Database *database, int which, int fd)
{
    Identity file = identity(fd, "", AT_EMPTY_PATH, which);
    if (database->open[which] && !same(database->files[which], file)) database->split = 1;
    if (!database->open[which]++) {
        database->files[which] = database->left[which] = file;
        database->locks[which] = reopened(database, fd, which, file);
        if (which == INDEX) database->reserved = database->locks[INDEX] >= 0 && reserve(database->locks[INDEX]);
        if (database->open[0]) mark(database, which, 1);
    }
    of[fd] = database;
    part[fd] = which;
    if (fd > highest) highest = fd;
}

/* With the guard held: it is so no longer; ``alone`` when nobody else has a lock on the file. */
static void closed(Database *database, int which, int alone)
{
    if (--database->open[which]) return;
    if (database->open[0]) mark(database, which, 0);
    if (database->locks[which] >= 0 && alone) close(database->locks[which]);
    else if (database->locks[which] >= 0) park(database->locks[which], which);
    database->locks[which] = -1;
    memset(&database->files[which], 0, sizeof(Identity));
    if (!which) database->moved.known = 0, database->seen = 0;
    if (which == INDEX) database->frames = database->reserved = 0;
    if (!database->open[0]) database->split = database->marked[1] = database->marked[2] = 0;
}

static int own_close(int fd);

static int own_open(const char *path, int flags, int mode)
{
    int which, fd = -1, refused;
    Identity there = {0};
    pthread_mutex_lock(&guard);
    Database *database = owner(path, &which);
    if (database && database->inherited) database = NULL;
    if (database) there = identity(AT_FDCWD, path, flags & O_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0, which);
    /* Before it is opened, which makes it: whoever has the other one shall find nothing in its place. */
    refused = database && another(database, which, there);
    if (refused) database->refused = 1;
    else if (database && lockable(which) && parked_count && !(flags & (O_EXCL | O_TRUNC))
             && !faccessat(AT_FDCWD, path, (flags & O_ACCMODE) == O_RDONLY ? R_OK : R_OK | W_OK, AT_EACCESS))
        fd = take(there, flags & O_ACCMODE);
    pthread_mutex_unlock(&guard);
    if (refused) { errno = EBUSY; return -1; }
    if (fd < 0 && (fd = open(path, flags, mode)) < 0 && (errno == EMFILE || errno == ENFILE)) {
        pthread_mutex_lock(&guard);
        release_all();
        pthread_mutex_unlock(&guard);
        fd = open(path, flags, mode);
    }
    if (fd < 0 || fd >= DESCRIPTORS) return fd;
    pthread_mutex_lock(&guard);
    of[fd] = NULL;
    if (database) opened(database, which, fd);
    /* And after it: the other one may have come just now. */
    refused = database && which && which < KEPT && database->marked[which]
        && (others_say_another(database->locks[0], which, database->files[which])
            || others_say_another(database->locks[which], OWNER, database->files[0]));
    if (refused) database->refused = 1;
    pthread_mutex_unlock(&guard);
    if (refused) { own_close(fd); errno = EBUSY; return -1; }
    return fd;
}

static int own_close(int fd)
{
    if (fd < 0 || fd >= DESCRIPTORS || !of[fd]) return close(fd);
    pthread_mutex_lock(&guard);
    Database *database = of[fd];
    of[fd] = NULL;
    if (database == &parents) close(fd);
    else {
        int which = part[fd];
        Identity file = database->files[which];
        int alone = lockable(which) && database->open[which] == 1 && !database->split && database->locks[which] >= 0
            && !lock_all(database->locks[which], which);
        if (alone) {
            close_parked(file.dev, file.ino, -1);
            close(fd);
        }
        closed(database, which, alone);
        if (!alone) park(fd, which);
        if (parked_count && !database->open[which]) release_one_more(alone ? (Identity){0} : file);
    }
    pthread_mutex_unlock(&guard);
    return 0;
}

static int own_unlink(const char *path)
{
    int which, refused, theirs;
    pthread_mutex_lock(&guard);
    Database *database = owner(path, &which);
    refused = database && database->inherited;
    /* The last one to close removes the log and its index, by their names: what others have put there is theirs. */
    theirs = database && which && which < KEPT && database->left[which].known
        && !same(database->left[which], identity(AT_FDCWD, path, 0, which));
    pthread_mutex_unlock(&guard);
    if (refused) { errno = EPERM; return -1; }
    return theirs ? 0 : unlink(path);
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
    struct flock ours = *lock;
    int writing = part[fd] == INDEX && lock->l_start >= WRITING && lock->l_start < WRITING + WRITING_SIZE;
    /* A file that was opened under the name of another one has locks of its own; so has one that could not be shared. */
    if (!whose->split && whose->locks[part[fd]] >= 0) fd = whose->locks[part[fd]];
    if (writing && command != F_GETLK) {
        if (lock->l_type != F_UNLCK && !whose->reserved && !(whose->reserved = reserve(fd))) { errno = EAGAIN; return -1; }
        ours.l_start += ELSEWHERE;
        lock = &ours;
    }
    return fcntl(fd, command == F_SETLK ? F_OFD_SETLK : command == F_SETLKW ? F_OFD_SETLKW : F_OFD_GETLK, lock);
}

/* What is known of descriptors is whole in the child. */
static void before_fork(void) { pthread_mutex_lock(&guard); }
static void in_parent(void) { pthread_mutex_unlock(&guard); }

/* The child of a fork has descriptors of the same open files, and its copy of SQLite believes in their locks. They are
 * replaced, so that the locks end with the parent, and no connection of the parent's can do anything in the child. */
static void in_child(void)
{
    pthread_mutex_init(&guard, NULL);
    /* No lock is inherited, so none can be dropped; and a lock on one of these would be the parent's as well. */
    while (parked_count) close(parked[--parked_count].fd);
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
    return pthread_atfork(before_fork, in_parent, in_child);
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
        memset(database->locks, -1, sizeof database->locks);
        database->next = databases[at];
        databases[at] = database;
    } else result = ENOMEM;
    pthread_mutex_unlock(&guard);
    return result;
}

#define CUT 4            /* what is told of a log that was cut or written over in place */
#define WRITTEN_OVER 5   /* and of a database */
#define PUT_BACK 6       /* and of an index that knows less of the same log than it did */
#define LOOKS 100        /* so often somebody may change what is compared while it is read */

/* With the guard held: what the index says of the log; 0 when there is none, or somebody is writing it. */
static int read_index(const Database *database, Index *index)
{
    if (!database->open[1] || !database->open[2] || database->split || database->locks[1] < 0 || database->locks[2] < 0) return 0;
    return pread(database->locks[2], index, sizeof *index, 0) == sizeof *index && index->first.init
        && !memcmp(&index->first, &index->second, sizeof index->first);
}

static off_t frame_at(uint64_t number, off_t page) { return 32 + (off_t)(number - 1) * (page + 24); }
static off_t page_size(const Index *index) { return index->first.page == 1 ? 65536 : index->first.page; }
static uint32_t big(const unsigned char *at) { return (uint32_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3]; }

/* With the guard held: whether the log begins, and its last page that was committed is, as its index says. Whoever begins
 * the log anew says in the index first that it is empty; so what does not fit is looked at again while the index changes. */
static int log_fits(const Database *database, Index index)
{
    unsigned char salt[8], frame[24];
    for (int i = 0; i < LOOKS; i++) {
        if (!index.first.frames) return 1;
        off_t last = frame_at(index.first.frames, page_size(&index));
        if (pread(database->locks[1], salt, sizeof salt, 16) == sizeof salt && !memcmp(salt, index.first.salt, sizeof salt)
            && pread(database->locks[1], frame, sizeof frame, last) == sizeof frame && !memcmp(frame + 8, salt, sizeof salt)
            && big(frame + 16) == index.first.sums[0] && big(frame + 20) == index.first.sums[1]) return 1;
        Index again;
        if (!read_index(database, &again)) return 1;
        if (!memcmp(&index.first, &again.first, sizeof index.first)) return 0;
        index = again;
    }
    return 1;
}

static uint64_t seen(const Database *database);
static int moved_pages_fit(const Database *database, const Index *index);

/* With the guard held, of a database that was written since all was well: whether that was somebody who moved the log into
 * it, who says so in the index before. An index that says that somebody is at it is believed. */
static int database_fits(const Database *database)
{
    unsigned char head[100];
    Index index;
    if (!database->moved.known || !read_index(database, &index)) return 1;
    Moved now = moved(&index);
    /* Nobody has moved anything. A time can be set without a byte being written (touch). */
    if (now.known && !memcmp(&now, &database->moved, sizeof now))
        return database->seen && database->seen == seen(database) && moved_pages_fit(database, &index);
    ssize_t size = database->locks[0] < 0 ? -1 : pread(database->locks[0], head, sizeof head, 0);
    return size < 0 || (size == sizeof head && !memcmp(head, "SQLite format 3", 16));
}

#define HEAD (64 << 10)  /* with the roots of all tables, and the few rows that change whenever a session is opened */
#define SAMPLES 16

/* With the guard held: a number for what is in the database: its size, its head, and pages all over it. Never 0. */
static uint64_t seen(const Database *database)
{
    static uint64_t bytes[HEAD / 8];
    struct stat s;
    if (database->locks[0] < 0 || fstat(database->locks[0], &s)) return 0;
    uint64_t hash = 14695981039346656037u ^ (uint64_t)s.st_size;
    for (int i = 0; i <= SAMPLES; i++) {
        off_t at = i ? (s.st_size / SAMPLES * i - 4096) & ~(off_t)4095 : 0;
        if (i && at < HEAD) continue;
        ssize_t size = pread(database->locks[0], bytes, i ? 4096 : HEAD, at);
        if (size < 0) return 0;
        for (ssize_t n = 0; n < size / 8; n++) hash = (hash ^ bytes[n]) * 1099511628211u;
    }
    return hash ? hash : 1;
}

/* With the guard held: whether the pages that were moved last are in the database, as the log still has them. */
static int moved_pages_fit(const Database *database, const Index *index)
{
    static unsigned char ours[65536], there[65536];
    unsigned char frame[24];
    uint32_t known[SAMPLES];
    off_t page = page_size(index);
    for (uint32_t n = 0; n < SAMPLES && n < index->moved; n++) {
        off_t at = frame_at(index->moved - n, page);
        int newer = 0;
        if (pread(database->locks[1], frame, sizeof frame, at) != sizeof frame) return 1;
        known[n] = big(frame);
        for (uint32_t i = 0; i < n; i++) newer |= known[i] == known[n];
        if (newer || !known[n]) continue;
        if (pread(database->locks[1], ours, page, at + 24) != page) return 1;
        if (pread(database->locks[0], there, page, (off_t)(known[n] - 1) * page) != page || memcmp(ours, there, page)) return 0;
    }
    return 1;
}

/* All of it with the guard held: of two threads that look, the one with older news would take the other's for foreign. */
static int look(Database *database, int after)
{
    char name[4096];
    struct statx_timestamp changed = {0};
    Index index;
    /* Before the time of the database: who moves the log meanwhile makes that newer, and not older. */
    int indexed = !after && read_index(database, &index);
    if (database->length + 5 > sizeof name) return 0;
    memcpy(name, database->path, database->length);
    for (int i = after; i < KEPT; i++) {
        strcpy(name + database->length, suffixes[i]);
        Identity there = identity(AT_FDCWD, name, 0, i);
        if (database->files[i].known && !same(database->files[i], there)) return i + 1;
        if (i) continue;
        changed = there.changed;
        /* Before it is seen that the log is gone: whoever found it cut may have set it aside, and not a page of it is to
         * be moved into the database. */
        if (indexed && !log_fits(database, index)) return CUT;
    }
    /* Asked last: a database that was replaced is more than a log that was, for nobody else has what is in ours. */
    if (database->split && after < 2) return 2;
    if (after) return 0;
    /* Whoever begins a log anew gives it another salt; of the same one no page is ever taken back. */
    if (indexed && index.first.frames < database->frames && !memcmp(index.first.salt, database->salt, sizeof database->salt))
        return PUT_BACK;
    if (memcmp(&database->files[0].changed, &changed, sizeof changed) && !database_fits(database)) return WRITTEN_OVER;
    Moved now = indexed ? moved(&index) : (Moved){0};
    if (!database->seen || memcmp(&database->files[0].changed, &changed, sizeof changed) || memcmp(&database->moved, &now, sizeof now))
        database->seen = seen(database);
    database->files[0].changed = changed;
    database->moved = now;
    if (indexed) {
        database->frames = index.first.frames;
        memcpy(database->salt, index.first.salt, sizeof database->salt);
    }
    return 0;
}

/* Whether its files are still those that were opened: 0, or the number of the first after a given one that is not,
 * counted from 1; or one of those above. */
int perdure_astray(const char *path, int after)
{
    pthread_mutex_lock(&guard);
    Database *database = find(path, strlen(path));
    int result = database ? look(database, after) : 0;
    pthread_mutex_unlock(&guard);
    return result;
}

/* Keep everybody else from opening the database, or no longer: 0, or EAGAIN while somebody is just doing so. */
int perdure_keep_out(const char *path, int on)
{
    pthread_mutex_lock(&guard);
    Database *database = find(path, strlen(path));
    int result = database && database->locks[0] >= 0 ? lock(database->locks[0], on ? F_WRLCK : F_UNLCK, PENDING, 1) : ENOENT;
    pthread_mutex_unlock(&guard);
    return result;
}

/* With everybody else kept out: whether nobody has gone on with another log than ours, so that ours may be moved into the
 * database. That is so when nothing is in the place of what is gone; or when nobody else has the database open, and what
 * is there in the place of the log is empty. And when the database is as it was when all was well last. */
int perdure_alone(const char *path)
{
    char name[4096];
    struct statx s;
    Database now = {0};
    size_t length = strlen(path);
    pthread_mutex_lock(&guard);
    Database *database = find(path, length);
    if (database) now = *database;
    pthread_mutex_unlock(&guard);
    if (!database || length + 5 > sizeof name) return 0;
    Identity there = identity(AT_FDCWD, path, 0, 0);
    if (!same(now.files[0], there) || memcmp(&now.files[0].changed, &there.changed, sizeof there.changed)) return 0;
    int nobody = !locked(now.locks[0], SHARED, SHARED_SIZE);
    memcpy(name, path, length);
    for (int i = 1; i < KEPT; i++) {
        strcpy(name + length, suffixes[i]);
        there = identity(AT_FDCWD, name, 0, i);
        if (!there.known || same(now.files[i], there)) continue;
        if (!nobody || (i == 1 && (statx(AT_FDCWD, name, 0, STATX_SIZE, &s) || s.stx_size))) return 0;
    }
    return 1;
}

/* Where the database is now, if it was renamed, and its log with it; 0 when it was not. */
int perdure_moved_to(const char *path, char *there, int size)
{
    char link[32];
    int found = 0;
    pthread_mutex_lock(&guard);
    Database *database = find(path, strlen(path));
    if (database && database->locks[0] >= 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", database->locks[0]);
        ssize_t length = readlink(link, there, size - 5);
        if (length > 0 && length < size - 5) {
            there[length] = 0;
            found = strcmp(there, path) && same(database->files[0], identity(AT_FDCWD, there, 0, 0));
            strcpy(there + length, suffixes[1]);
            found = found && (!database->open[1] || same(database->files[1], identity(AT_FDCWD, there, 0, 1)));
            there[length] = 0;
        }
    }
    pthread_mutex_unlock(&guard);
    return found;
}

/* Whether our log has nothing in it that is not in the database. */
int perdure_log_is_empty(const char *path)
{
    struct stat s;
    pthread_mutex_lock(&guard);
    Database *database = find(path, strlen(path));
    int empty = database && database->open[1] && !fstat(database->locks[1], &s) && !s.st_size;
    pthread_mutex_unlock(&guard);
    return empty;
}

/* Its words, in the order that the log says, summed up as SQLite does it. */
static void sum_up(const unsigned char *bytes, size_t size, int big_endian, uint32_t sums[2])
{
    for (size_t i = 0; i < size; i += 8) {
        const unsigned char *a = bytes + i, *b = a + 4;
        sums[0] += (big_endian ? big(a) : (uint32_t)a[3] << 24 | a[2] << 16 | a[1] << 8 | a[0]) + sums[1];
        sums[1] += (big_endian ? big(b) : (uint32_t)b[3] << 24 | b[2] << 16 | b[1] << 8 | b[0]) + sums[0];
    }
}

/* With the guard held: how much of our log the next one to read it would take for committed. */
static uint32_t readable(const Database *database, const Index *index)
{
    unsigned char head[32], frame[24], *bytes;
    off_t page = page_size(index);
    uint32_t sums[2] = {0, 0}, last = 0;
    if (pread(database->locks[1], head, sizeof head, 0) != sizeof head || (big(head) & ~1u) != 0x377f0682
        || memcmp(head + 16, index->first.salt, 8) || !(bytes = malloc(page))) return 0;
    sum_up(head, 24, head[3] & 1, sums);
    for (uint32_t n = 1; n <= index->first.frames; n++) {
        off_t at = frame_at(n, page);
        if (pread(database->locks[1], frame, sizeof frame, at) != sizeof frame || memcmp(frame + 8, index->first.salt, 8)
            || pread(database->locks[1], bytes, page, at + 24) != page) break;
        sum_up(frame, 8, head[3] & 1, sums);
        sum_up(bytes, page, head[3] & 1, sums);
        if (big(frame + 16) != sums[0] || big(frame + 20) != sums[1]) break;
        if (big(frame + 4)) last = n;
    }
    free(bytes);
    return last;
}

/* Of a log that was cut or written over: 1 when whoever opens the database next may not find it, for by what is left of it
 * the database would become older, or another one; and 2 when all that was in it is in the database. */
int perdure_left_of_log(const char *path)
{
    Index index;
    struct stat s;
    int result = 0;
    pthread_mutex_lock(&guard);
    Database *database = find(path, strlen(path));
    if (database && read_index(database, &index)) {
        uint32_t left = readable(database, &index), most = index.moved > index.moving ? index.moved : index.moving;
        if ((left < most || !left) && !fstat(database->locks[1], &s) && s.st_size) result |= 1;
        if (index.moved == index.first.frames && index.moved == index.moving) result |= 2;
    }
    pthread_mutex_unlock(&guard);
    return result;
}

/* What our log had is safe: others may open theirs. */
void perdure_unmark(const char *path)
{
    pthread_mutex_lock(&guard);
    Database *database = find(path, strlen(path));
    for (int i = 1; i < KEPT && database && database->open[0]; i++) mark(database, i, 0);
    pthread_mutex_unlock(&guard);
}

/* Whether a log was not opened since this was asked last, because others have another one. */
int perdure_refused(const char *path)
{
    pthread_mutex_lock(&guard);
    Database *database = find(path, strlen(path));
    int refused = database && database->refused;
    if (database) database->refused = 0;
    pthread_mutex_unlock(&guard);
    return refused;
}
