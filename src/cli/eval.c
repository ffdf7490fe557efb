/* SPDX-License-Identifier: Apache-2.0 */
/* `pith eval`: the Python package has it, so this hands over to the interpreter that has the package. */
#include <string.h>

#include "cli/base/options.h"
#include "cli/commands.h"
#include "cli/interpreter.h"

int cli_eval(int argc, char **argv) {
  const cli_option options[] = {{.name = NULL}};
  const cli_usage usage = {"eval", "COMMAND …",
                           "Trains models with many methods under the same rules, and reports what each is worth: run "
                           "GRID, report RESULTS, compare A B, merge FILES, list. It is part of the Python package, "
                           "and is started with the interpreter of PITH_PYTHON, of the virtual environment or of "
                           "PATH; \"pith eval run --help\" lists the options of a command.",
                           options};
  int rest = 0;
  if (argc <= 1) { /* of a command, the package knows the options */
    cli_parsed parsed = cli_options_parse_leading(&usage, argc, argv, &rest);
    if (parsed != CLI_PARSED) {
      return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
    }
  }
  return cli_python_run("eval", argc, argv);
}
