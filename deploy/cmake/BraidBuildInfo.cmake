# Run by every build (cmake -P): writes OUT when the commit or the features have changed, so that only
# base/build_info.c is compiled again. Arguments: SOURCE, OUT, FEATURES.
set(commit unknown)
set(date unknown)
find_program(GIT git)
if(GIT)
  # Twelve digits: git's own choice depends on how much of the history a clone has. A prefix: the source
  # lies in another project's clone.
  execute_process(COMMAND ${GIT} -C ${SOURCE} log -1 --abbrev=12 --format=%h_%cs
                  OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-prefix
                  OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND prefix STREQUAL "" AND head MATCHES "^([0-9a-f]+)_([0-9-]+)$")
    set(commit ${CMAKE_MATCH_1})
    set(date ${CMAKE_MATCH_2})
    execute_process(COMMAND ${GIT} -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE dirty ERROR_QUIET)
    if(dirty)
      string(APPEND commit "-dirty")
    endif()
  endif()
endif()
set(text "/* Generated. */
#define BRAID_BUILD_COMMIT \"${commit}\"
#define BRAID_BUILD_DATE \"${date}\"
#define BRAID_BUILD_FEATURES \"${FEATURES}\"
")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
