# snug_test(name LABEL core|cpu|cuda|slow SOURCES a.cpp b.cpp ...): one GoogleTest program, one ctest entry.
# A test with the label core, alone or beside slow (LABEL core slow), links no LibTorch.
function(snug_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "LABEL;SOURCES" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name}_test ${arg_SOURCES})
  if("core" IN_LIST arg_LABEL)
    target_link_libraries(${name}_test PRIVATE snug_core GTest::gtest GTest::gtest_main)
  else()
    target_link_libraries(${name}_test PRIVATE snug GTest::gtest GTest::gtest_main)
    snug_precompiled(${name}_test)
    set_target_properties(${name}_test PROPERTIES UNITY_BUILD OFF)  # each file has its own leaf(), Net and kRows
  endif()
  add_test(NAME ${name} COMMAND ${name}_test)
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}" TIMEOUT ${arg_TIMEOUT})
  if("cuda" IN_LIST arg_LABEL)
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "NO GPU")  # ctest says Skipped, not Passed
  endif()
endfunction()
