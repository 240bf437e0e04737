# snug_test(name LABEL core|cpu|cuda ... SOURCES a.cpp b.cpp ...): one GoogleTest program, one ctest entry.
# core: links no LibTorch. cuda: needs a GPU. Others may stand beside these:
#   asan, tsan   CI runs it under that sanitizer: what owns memory, reads files or shares it between threads. The rest (models,
#                training runs, the command line) runs the same code again on larger steps, and is left to test-long.
#   long         random suites; `make test-long` runs it with more of them
add_custom_target(asan_tests)
add_custom_target(tsan_tests)
function(snug_test name)
  cmake_parse_arguments(arg "" "" "LABEL;SOURCES" ${ARGN})
  add_executable(${name}_test ${arg_SOURCES})
  if("core" IN_LIST arg_LABEL)
    target_link_libraries(${name}_test PRIVATE snug_core GTest::gtest GTest::gtest_main)
    # Compiled more often than run. The others share a precompiled header, which wants one -O for all.
    target_compile_options(${name}_test PRIVATE $<$<CONFIG:Release>:-O1>)
  else()
    target_link_libraries(${name}_test PRIVATE snug GTest::gtest GTest::gtest_main)
    snug_precompiled(${name}_test)
  endif()
  add_test(NAME ${name} COMMAND ${name}_test)
  # Beside other tests a thread of OpenMP that waits busily keeps the core from the one that it waits for.
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}" ENVIRONMENT "OMP_WAIT_POLICY=passive;XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache")
  foreach(sanitizer asan tsan)
    if(${sanitizer} IN_LIST arg_LABEL)
      add_dependencies(${sanitizer}_tests ${name}_test)
    endif()
  endforeach()
  if("cuda" IN_LIST arg_LABEL)
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "NO GPU")  # ctest says Skipped, not Passed
  endif()
endfunction()
