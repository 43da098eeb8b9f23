/* Runs a program whose system calls on the files below one folder fail as a control file says.
 *
 *     STORAGE_FAULTS_FOLDER=… STORAGE_FAULTS_CONTROL=… storage_faults PROGRAM [ARGUMENT…]
 *
 * As long as the control file exists, it holds the number of an error: calls that open, list, read or ask for a status
 * below the folder fail with it, and with 0 they do not return before the file is gone. Everything else goes on as usual.
 * The process becomes the program; a grandchild of it answers the kernel (seccomp user notification, Linux 5.5), so calls
 * are caught however they are made.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_HUNG 4096

static void fail(const char *what) {
    perror(what);
    _exit(99);
}

/* Calls with a folder's descriptor and a path first, calls with a descriptor first, and old calls with a path first. */
static const int BY_PATH[] = {SYS_openat, SYS_newfstatat, SYS_statx, SYS_readlinkat};
static const int BY_DESCRIPTOR[] = {SYS_pread64, SYS_preadv, SYS_preadv2, SYS_getdents64};
#ifdef SYS_open
static const int BY_PATH_ALONE[] = {SYS_open, SYS_stat, SYS_lstat, SYS_readlink};
#else
static const int BY_PATH_ALONE[] = {-1};
#endif
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static int install_filter(void) {
    enum { CALLS = COUNT(BY_PATH) + COUNT(BY_DESCRIPTOR) + COUNT(BY_PATH_ALONE) };
    int calls[CALLS];
    memcpy(calls, BY_PATH, sizeof BY_PATH);
    memcpy(calls + COUNT(BY_PATH), BY_DESCRIPTOR, sizeof BY_DESCRIPTOR);
    memcpy(calls + COUNT(BY_PATH) + COUNT(BY_DESCRIPTOR), BY_PATH_ALONE, sizeof BY_PATH_ALONE);
    struct sock_filter filter[CALLS + 3];
    filter[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < CALLS; i++)
        filter[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], CALLS - i, 0);
    filter[CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[CALLS + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    struct sock_fprog program = {.len = CALLS + 3, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("no_new_privs");
    long listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (listener < 0) fail("seccomp");
    return (int)listener;
}

static void send_descriptor(int socket, int descriptor) {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    if (sendmsg(socket, &message, 0) != 1) fail("sendmsg");
}

static int receive_descriptor(int socket) {
    char byte, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, 0) != 1) _exit(0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL) _exit(0);
    int descriptor;
    memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    return descriptor;
}

static void path_of_descriptor(unsigned process, int descriptor, char *path) {
    char link[64];
    if (descriptor == AT_FDCWD) snprintf(link, sizeof link, "/proc/%u/cwd", process);
    else snprintf(link, sizeof link, "/proc/%u/fd/%d", process, descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
}

static int is_among(int call, const int *calls, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (call == calls[i]) return 1;
    return 0;
}

static int is_below(const struct seccomp_notif *asked, const char *folder) {
    char path[2 * PATH_MAX] = "", name[PATH_MAX] = "";
    int is_alone = is_among(asked->data.nr, BY_PATH_ALONE, COUNT(BY_PATH_ALONE));
    if (is_alone || is_among(asked->data.nr, BY_PATH, COUNT(BY_PATH))) {
        /* As much as there is up to the end of its page, and then the next. */
        char *to = name;
        unsigned long from = asked->data.args[is_alone ? 0 : 1];
        while (to < name + sizeof name - 1) {
            size_t room = 4096 - from % 4096, left = (size_t)(name + sizeof name - 1 - to);
            struct iovec own = {to, room < left ? room : left}, theirs = {(void *)from, own.iov_len};
            ssize_t got = process_vm_readv((pid_t)asked->pid, &own, 1, &theirs, 1, 0);
            if (got <= 0 || memchr(to, 0, (size_t)got) != NULL) break;
            to += got;
            from += (unsigned long)got;
        }
    }
    if (name[0] == '/') strcpy(path, name);
    else {
        path_of_descriptor(asked->pid, is_alone ? AT_FDCWD : (int)asked->data.args[0], path);
        if (name[0] != 0) strcat(strcat(path, "/"), name);
    }
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == 0 || path[length] == '/');
}

/* The error to fail with; 0: to hang; -1: none. */
static int fault(const char *control) {
    char text[16] = "";
    int file = open(control, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    /* It may be on its way to be written. */
    return length > 0 ? atoi(text) : -1;
}

static void answer(int listener, unsigned long long id, int error) {
    struct seccomp_notif_resp reply = {.id = id, .error = -error};
    if (error == 0) reply.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    /* Who asked may be gone. */
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
}

static void serve(int listener, const char *folder, const char *control) {
    static unsigned long long hung[MAX_HUNG];
    size_t hung_count = 0;
    for (;;) {
        struct pollfd watched = {listener, POLLIN, 0};
        int ready = poll(&watched, 1, hung_count > 0 ? 5 : -1);
        if (hung_count > 0 && fault(control) != 0) {
            while (hung_count > 0) answer(listener, hung[--hung_count], 0);
        }
        if (ready <= 0) continue;
        if ((watched.revents & POLLIN) == 0) _exit(0);
        struct seccomp_notif asked;
        memset(&asked, 0, sizeof asked);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) continue;
        int error = fault(control);
        if (error < 0 || !is_below(&asked, folder)) answer(listener, asked.id, 0);
        else if (error > 0) answer(listener, asked.id, error);
        else if (hung_count < MAX_HUNG) hung[hung_count++] = asked.id;
    }
}

int main(int argc, char **argv) {
    const char *folder = getenv("STORAGE_FAULTS_FOLDER"), *control = getenv("STORAGE_FAULTS_CONTROL");
    if (argc < 2 || folder == NULL || control == NULL) {
        fputs("usage: STORAGE_FAULTS_FOLDER=… STORAGE_FAULTS_CONTROL=… storage_faults PROGRAM …\n", stderr);
        return 99;
    }
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        if (fork() != 0) _exit(0);
        close(ends[0]);
        setsid();
        int listener = receive_descriptor(ends[1]);
        /* It holds nothing of the program open. */
        for (int descriptor = 0; descriptor < 256; descriptor++)
            if (descriptor != listener) close(descriptor);
        serve(listener, folder, control);
    }
    waitpid(child, NULL, 0);
    close(ends[1]);
    int listener = install_filter();
    send_descriptor(ends[0], listener);
    close(listener);
    close(ends[0]);
    execv(argv[1], argv + 1);
    fail("execv");
}
