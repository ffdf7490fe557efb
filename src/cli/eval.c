/* SPDX-License-Identifier: Apache-2.0 */
/* `pith eval` is part of the Python package, so this starts the interpreter that has the package. */
#include <string.h>

#include "cli/base/options.h"
#include "cli/commands.h"
#include "cli/interpreter.h"

int cli_eval(int argc, char **argv) {
  const cli_option options[] = {{.name = NULL}};
  const cli_usage usage = {
      "eval", "COMMAND …",
      "Trains models with many methods under the same rules, and reports quality, time and bytes.\n"
      "  run GRID        train; a run that was stopped goes on where it was\n"
      "  report RESULTS  write the report, a page of HTML\n"
      "  compare A B     compare the results of two grids\n"
      "  merge FILES     join results\n"
      "  list            list grids and tasks\n"
      "\n"
      "\"pith eval run --help\" lists the options of a command. pith eval is part of the Python package. It starts "
      "the interpreter of PITH_PYTHON, of the virtual environment or of PATH.",
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
