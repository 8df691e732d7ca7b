/* Runs a command in a machine for as long as its ssh session lives.
 *
 *     session DIRECTORY [NAME=VALUE]... -- COMMAND [ARGUMENT]...
 *
 * sshd leaves a command running when the client is gone. A worker whose ssh client dies has to die like a
 * process of its own, so this watches the session's stdout and stderr: when nobody reads them any more, the
 * command and all of its process group are killed. The exit code is the command's, 128 + signal if one
 * ended it, 127 if it is not there, 126 if it cannot be run. On a terminal, the terminal's hang-up does that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

static void run(char **command)
{
    execvp(command[0], command);
    const int error = errno;
    const char *what = strerror(error);
    if (error == ENOENT)
        what = strchr(command[0], '/') == NULL ? "command not found"
                                               : "not in this machine, or what it links to or is run by is not "
                                                 "(absolute paths of the host are under /host; Python is python3)";
    fprintf(stderr, "%s: %s\n", command[0], what);
    _exit(error == ENOENT ? 127 : 126);
}

static int watch(pid_t child, int ended)
{
    struct pollfd watched[] = {{ended, POLLIN, 0}, {STDOUT_FILENO, 0, 0}, {STDERR_FILENO, 0, 0}};
    for (;;) {
        if (poll(watched, 3, -1) < 0 && errno != EINTR)
            return EXIT_FAILURE;
        int status;
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if ((watched[1].revents | watched[2].revents) & (POLLERR | POLLHUP | POLLNVAL)) {
            kill(-child, SIGKILL);
            waitpid(child, &status, 0);
            return 128 + SIGKILL;
        }
        struct signalfd_siginfo information;
        if ((watched[0].revents & POLLIN) && read(ended, &information, sizeof information) < 0)
            return EXIT_FAILURE;
    }
}

int main(int count, char **words)
{
    int i = 2;
    if (count < 2)
        return 2;
    for (; i < count && strcmp(words[i], "--") != 0; i++)
        putenv(words[i]);
    if (i + 1 >= count) {
        fprintf(stderr, "session: no command\n");
        return 2;
    }
    char **command = words + i + 1;
    if (chdir(words[1]) != 0 && chdir("/") != 0)
        return EXIT_FAILURE;
    if (isatty(STDIN_FILENO))
        run(command);

    sigset_t signals, before;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, &before);
    int ended = signalfd(-1, &signals, SFD_CLOEXEC);
    pid_t child = fork();
    if (ended < 0 || child < 0) {
        perror("session");
        return EXIT_FAILURE;
    }
    if (child == 0) {
        setpgid(0, 0);
        sigprocmask(SIG_SETMASK, &before, NULL);
        run(command);
    }
    setpgid(child, child); /* whoever comes first */
    return watch(child, ended);
}
