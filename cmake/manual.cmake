# SPDX-License-Identifier: Apache-2.0
# The manual page and the completions of shells: written by the command itself, from its tables of options.
set(PITH_MANUAL_DIR ${CMAKE_BINARY_DIR}/manual)
set(PITH_MANUAL ${PITH_MANUAL_DIR}/pith.1 ${PITH_MANUAL_DIR}/pith ${PITH_MANUAL_DIR}/_pith ${PITH_MANUAL_DIR}/pith.fish)

if(CMAKE_CROSSCOMPILING)
  message(STATUS "No manual page and no shell completion: the command of this build cannot run here")
else()
  add_custom_command(
    OUTPUT ${PITH_MANUAL}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PITH_MANUAL_DIR}
    COMMAND ${CMAKE_COMMAND} -E env --unset=PITH_PLUGINS $<TARGET_FILE:pith_cli> man > ${PITH_MANUAL_DIR}/pith.1
    COMMAND ${CMAKE_COMMAND} -E env --unset=PITH_PLUGINS $<TARGET_FILE:pith_cli> completion bash > ${PITH_MANUAL_DIR}/pith
    COMMAND ${CMAKE_COMMAND} -E env --unset=PITH_PLUGINS $<TARGET_FILE:pith_cli> completion zsh > ${PITH_MANUAL_DIR}/_pith
    COMMAND ${CMAKE_COMMAND} -E env --unset=PITH_PLUGINS $<TARGET_FILE:pith_cli> completion fish > ${PITH_MANUAL_DIR}/pith.fish
    DEPENDS pith_cli
    VERBATIM)
  add_custom_target(pith_manual ALL DEPENDS ${PITH_MANUAL})
endif()
