/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process, one question, one pipe. The interpreter runs a short script that prints "key=value" lines; a torch
 * that hangs or crashes on import takes nothing but that process with it.
 */
#include "cli/interpreter.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/base/cli.h"

enum { SECONDS_MOST = 60, ANSWER_SIZE = 8192 };

/* Errors become one line. The folder of the caller is no place to import from. */
static const char script[] =
    "import sys\n"
    "sys.path[:] = [p for p in sys.path if p not in ('', '.')]\n"
    "def say(key, value):\n"
    "    print(key + '=' + ' '.join(str(value).split()), flush=True)\n"
    "def why(error):\n"
    "    return type(error).__name__ + ': ' + str(error)\n"
    "say('version', sys.version.split()[0])\n"
    "try:\n"
    "    import importlib.metadata as metadata\n"
    "    say('pith', metadata.version('pith'))\n"
    "except Exception:\n"
    "    pass\n"
    "try:\n"
    "    import torch\n"
    "except ModuleNotFoundError as error:\n"
    "    if error.name != 'torch':\n"
    "        say('torch_problem', why(error))\n"
    "    sys.exit(0)\n"
    "except BaseException as error:\n"
    "    say('torch_problem', why(error))\n"
    "    sys.exit(0)\n"
    "say('torch', torch.__version__)\n"
    "if torch.version.cuda:\n"
    "    say('torch_cuda', torch.version.cuda)\n"
    "    try:\n"
    "        say('torch_nccl', '.'.join(map(str, torch.cuda.nccl.version())))\n"
    "    except Exception:\n"
    "        pass\n"
    "    try:\n"
    "        say('torch_devices', torch.cuda.device_count())\n"
    "    except Exception:\n"
    "        pass\n"
    "try:\n"
    "    import pith.torch\n"
    "    say('pith', getattr(pith, '__version__', '?'))\n"
    "except ModuleNotFoundError as error:\n"
    "    if error.name != 'pith':\n"
    "        say('pith_problem', why(error))\n"
    "except BaseException as error:\n"
    "    say('pith_problem', why(error))\n";

/* ---- Which one --------------------------------------------------------------------------------------------------- */

static int find_in(const char *folder, size_t length, char *path) {
  snprintf(path, CLI_PYTHON_TEXT, "%.*s/python3", (int)length, folder);
  return access(path, X_OK) == 0;
}

static int find_python(char *path) {
  const char *wanted = getenv("PITH_PYTHON"), *environment = getenv("VIRTUAL_ENV");
  char bin[CLI_PYTHON_TEXT];
  if (wanted && *wanted) {
    snprintf(path, CLI_PYTHON_TEXT, "%s", wanted);
    return 1;
  }
  snprintf(bin, sizeof bin, "%s/bin", environment ? environment : "");
  if (environment && find_in(bin, strlen(bin), path)) {
    return 1;
  }
  for (const char *at = getenv("PATH"); at && *at;) {
    size_t length = strcspn(at, ":");
    if (length && find_in(at, length, path)) {
      return 1;
    }
    at += length + (at[length] == ':');
  }
  return 0;
}

/* ---- Becoming it ------------------------------------------------------------------------------------------------- */

int cli_python_run(const char *command, int argc, char **argv) {
  char path[CLI_PYTHON_TEXT];
  if (!find_python(path)) {
    return cli_fail(CLI_FAILED, "%s: there is no python3 in PATH; PITH_PYTHON names one that has the package pith",
                    command);
  }
  char **all = calloc((size_t)argc + 5, sizeof *all);
  if (!all) {
    return cli_fail(CLI_FAILED, "%s: no memory", command);
  }
  char module[] = "-m", package[] = "pith";
  memcpy(all, (char *[]){path, module, package, (char *)command}, 4 * sizeof *all);
  for (int i = 0; i < argc; i++) {
    all[4 + i] = argv[i];
  }
  execvp(path, all);
  free(all);
  return cli_fail(CLI_FAILED, "%s: cannot start %s: %s", command, path, strerror(errno));
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

static _Noreturn void become_python(const char *path, int answer) {
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  setpgid(0, 0);
  dup2(null, 0);
  dup2(answer, 1);
  dup2(null, 2);
  execl(path, path, "-c", script, (char *)NULL);
  _exit(127);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Reads until the process has closed the pipe, there is no room, or the time is over. Returns whether it was in time.
 * */
static int read_answer(int pipe, char *text) {
  double end = now() + SECONDS_MOST;
  size_t used = 0;
  for (;;) {
    struct pollfd wait = {pipe, POLLIN, 0};
    double left = end - now();
    if (left <= 0 || poll(&wait, 1, (int)(left * 1000) + 1) == 0) {
      break;
    }
    ssize_t got = read(pipe, text + used, ANSWER_SIZE - 1 - used);
    if (got <= 0 && !(got < 0 && errno == EINTR)) {
      text[used] = 0;
      return 1;
    }
    used += got > 0 ? (size_t)got : 0;
  }
  text[used] = 0;
  return 0;
}

static void take_line(cli_python *p, const char *line) {
  const struct {
    const char *key;
    char *place;
  } known[] = {{"version", p->version},
               {"torch", p->torch},
               {"torch_problem", p->torch_problem},
               {"torch_cuda", p->torch_cuda},
               {"torch_nccl", p->torch_nccl},
               {"torch_devices", p->torch_devices},
               {"pith", p->pith},
               {"pith_problem", p->pith_problem}};
  size_t key = strcspn(line, "=");
  for (size_t i = 0; line[key] && i < sizeof known / sizeof *known; i++) {
    if (strlen(known[i].key) == key && !strncmp(known[i].key, line, key)) {
      snprintf(known[i].place, CLI_PYTHON_TEXT, "%s", line + key + 1);
    }
  }
}

static void explain_end(cli_python *p, int in_time, int status) {
  if (!in_time) {
    snprintf(p->problem, sizeof p->problem, "no answer within %d seconds", SECONDS_MOST);
  } else if (WIFSIGNALED(status)) {
    snprintf(p->problem, sizeof p->problem, "it was killed by signal %d%s", WTERMSIG(status),
             *p->version && !*p->torch ? " while it imported torch" : "");
  } else if (WEXITSTATUS(status) == 127 && !*p->version) {
    snprintf(p->problem, sizeof p->problem, "it cannot be started");
  } else if (WEXITSTATUS(status) != 0) {
    snprintf(p->problem, sizeof p->problem, "it ended with status %d", WEXITSTATUS(status));
  }
}

int cli_python_ask(cli_python *p) {
  char text[ANSWER_SIZE] = "", *rest = NULL;
  int fd[2], status = 0;
  memset(p, 0, sizeof *p);
  if (!find_python(p->path)) {
    return 0;
  }
  fflush(NULL);
  if (pipe2(fd, O_CLOEXEC) != 0) {
    snprintf(p->problem, sizeof p->problem, "no pipe to it: %s", strerror(errno));
    return 1;
  }
  pid_t pid = fork();
  if (pid == 0) {
    become_python(p->path, fd[1]);
  }
  close(fd[1]);
  int in_time = pid > 0 && read_answer(fd[0], text);
  close(fd[0]);
  if (pid > 0) {
    if (!in_time) {
      kill(-pid, SIGKILL);
      kill(pid, SIGKILL);
    }
    waitpid(pid, &status, 0);
  }
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    take_line(p, line);
  }
  explain_end(p, in_time, status);
  return 1;
}
