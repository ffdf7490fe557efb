/* SPDX-License-Identifier: Apache-2.0 */
/* Entering a user namespace, and finding out why that is forbidden. */
#include "cli/launch/user_namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A number in a file of /proc/sys; -1 if there is no such file. */
static long read_setting(const char *path) {
  char text[32] = "";
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return -1;
  }
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  return got > 0 ? strtol(text, NULL, 10) : -1;
}

void cli_user_namespace_explain(int number, char *reason, size_t size) {
  const char *why;
  if (read_setting("/proc/sys/user/max_user_namespaces") == 0) {
    why =
        "user.max_user_namespaces is 0; an administrator can allow them with \"sysctl user.max_user_namespaces=10000\"";
  } else if (number == ENOSPC || number == EUSERS) {
    why = "there are as many as the limit user.max_user_namespaces allows, or they are nested too deeply";
  } else if (read_setting("/proc/sys/kernel/unprivileged_userns_clone") == 0) {
    why =
        "kernel.unprivileged_userns_clone is 0; an administrator can allow them with \"sysctl "
        "kernel.unprivileged_userns_clone=1\"";
  } else if (read_setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") > 0) {
    why =
        "AppArmor restricts them (kernel.apparmor_restrict_unprivileged_userns is 1); an administrator can allow them "
        "with "
        "\"sysctl kernel.apparmor_restrict_unprivileged_userns=0\", or with a profile for pith";
  } else if (number == EINVAL || number == ENOSYS) {
    why = "this kernel has none (CONFIG_USER_NS)";
  } else if (number == EPERM) {
    why =
        "the system refuses them, as containers do; start the container with \"docker run --cap-add SYS_ADMIN "
        "--cap-add "
        "NET_ADMIN\"";
  } else {
    why = strerror(number);
  }
  snprintf(reason, size, "network namespaces need root, or a user namespace, which cannot be had here: %s; or use sudo",
           why);
}

static int write_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) {
    return 0;
  }
  int good = write(fd, text, strlen(text)) == (ssize_t)strlen(text), number = errno;
  close(fd);
  errno = number;
  return good;
}

/* One user and one group, each as itself. Groups must be fixed before a user without rights may map one. */
static int map_identity(unsigned user, unsigned group) {
  char line[64];
  if (!write_file("/proc/self/setgroups", "deny") && errno != ENOENT) {
    return 0;
  }
  snprintf(line, sizeof line, "%u %u 1", user, user);
  if (!write_file("/proc/self/uid_map", line)) {
    return 0;
  }
  snprintf(line, sizeof line, "%u %u 1", group, group);
  return write_file("/proc/self/gid_map", line);
}

int cli_user_namespace_enter(char *reason, size_t size) {
  unsigned user = (unsigned)geteuid(), group = (unsigned)getegid();
  if (unshare(CLONE_NEWUSER) != 0 || !map_identity(user, group)) {
    cli_user_namespace_explain(errno, reason, size);
    return 0;
  }
  return 1;
}

/* A program that another user than root starts keeps only ambient rights, and only inheritable ones can become
 * ambient. */
void cli_user_namespace_keep_rights(void) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
  if (syscall(SYS_capget, &head, data) != 0) {
    return; /* the program will say what it may not do */
  }
  for (size_t i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
    data[i].inheritable = data[i].permitted;
  }
  if (syscall(SYS_capset, &head, data) != 0) {
    return;
  }
  for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++) {
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
  }
}
