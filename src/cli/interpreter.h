/* SPDX-License-Identifier: Apache-2.0 */
/* The Python that a user's training runs in: what it has of torch, CUDA, NCCL and Pith, asked from itself. */
#ifndef PITH_CLI_INTERPRETER_H
#define PITH_CLI_INTERPRETER_H

#include <stddef.h>

enum { CLI_PYTHON_TEXT = 512 };

/* Texts are empty where there is nothing to say. */
typedef struct cli_python {
  char path[CLI_PYTHON_TEXT], version[CLI_PYTHON_TEXT];
  char problem[CLI_PYTHON_TEXT];                                 /* why the interpreter did not answer */
  char torch[CLI_PYTHON_TEXT], torch_problem[CLI_PYTHON_TEXT];   /* version; why it cannot be imported */
  char torch_cuda[CLI_PYTHON_TEXT], torch_nccl[CLI_PYTHON_TEXT]; /* versions that torch was built with */
  char torch_devices[CLI_PYTHON_TEXT];                           /* how many GPUs torch can use */
  char pith[CLI_PYTHON_TEXT],
      pith_problem[CLI_PYTHON_TEXT]; /* version of the package; why pith.torch cannot be imported */
} cli_python;

/* Asks the interpreter of PITH_PYTHON, of the virtual environment or of PATH; it is killed if it takes longer than a
 * minute. Returns 0 if there is no Python at all. */
int cli_python_ask(cli_python *python);

/* Becomes that interpreter, with the command of the Python package and these arguments. Returns an exit code if it
 * cannot. */
int cli_python_run(const char *command, int argc, char **argv);

#endif
