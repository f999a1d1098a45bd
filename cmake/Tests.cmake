# tests/<room>/*.cpp become test_<room>, one ctest test per GoogleTest test, labelled with the room.

if(NOT FAULTLINE_TESTS)
  return()
endif()
enable_testing()
include(GoogleTest)
file(GLOB test_folders CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*)
file(GLOB support_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/*.cpp)

if(FAULTLINE_TESTS STREQUAL "AUTO")
  find_package(GTest QUIET)
  find_path(FAULTLINE_rapidcheck_INCLUDE_DIR rapidcheck.h)
  if(NOT GTest_FOUND OR NOT TARGET GTest::gmock OR NOT FAULTLINE_rapidcheck_INCLUDE_DIR)
    message(STATUS "Tests: off (they need libgtest-dev, libgmock-dev and librapidcheck-dev)")
    return()
  endif()
else()
  find_package(GTest REQUIRED)
endif()
faultline_dependency(rapidcheck librapidcheck-dev rapidcheck.h rapidcheck)

if(highest_room AND EXISTS ${PROJECT_SOURCE_DIR}/tests/main.cpp)
  add_library(faultline_test_support STATIC ${PROJECT_SOURCE_DIR}/tests/main.cpp ${support_sources})
  target_link_libraries(faultline_test_support PUBLIC
    faultline::${highest_room} GTest::gtest GTest::gmock faultline_dep::rapidcheck)
  faultline_share_pch(faultline_test_support)
endif()

set(test_rooms)
foreach(folder IN LISTS test_folders)
  get_filename_component(room ${folder} NAME)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  if(NOT sources OR room STREQUAL "support" OR NOT TARGET faultline_test_support
     OR (FAULTLINE_ROOMS AND NOT room IN_LIST FAULTLINE_ROOMS))
    continue()
  endif()
  add_executable(test_${room} ${sources})
  target_link_libraries(test_${room} PRIVATE faultline_test_support Eigen3::Eigen)
  faultline_header_only(nlohmann_json nlohmann-json3-dev nlohmann/json.hpp test_${room})
  faultline_share_pch(test_${room})
  # *Worker.* are entries for child processes that other tests start, no tests of their own.
  gtest_discover_tests(test_${room} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    TEST_FILTER "-*Worker.*"
    TEST_PREFIX "${room}." NO_PRETTY_VALUES TEST_LIST tests_of_${room})
  list(APPEND test_rooms ${room})
endforeach()

set(test_environment
  "RC_PARAMS=seed=20240917 max_success=60"
  "OMP_WAIT_POLICY=passive"  # tests run side by side; a thread that waits must not spin
  "FAULTLINE_BINARY=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/faultline"
  "FAULTLINE_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
  "FAULTLINE_BUILD_DIR=${PROJECT_BINARY_DIR}")
set(test_timeout 120)
set(script_timeout 900)
if(FAULTLINE_SANITIZE)
  set(test_timeout 600)
  list(APPEND test_environment
    "ASAN_OPTIONS=detect_stack_use_after_return=1"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/.ci/lsan.supp:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=halt_on_error=1")
endif()

# Discovered when ctest starts; then labels are given by name (a list is no argument of discovery).
configure_file(${PROJECT_SOURCE_DIR}/cmake/test_properties.cmake.in
               ${PROJECT_BINARY_DIR}/test_properties.cmake @ONLY)
set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${PROJECT_BINARY_DIR}/test_properties.cmake)

if(NOT FAULTLINE_ROOMS AND TARGET faultline)
  file(GLOB scripts CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/tests/scripts/*.sh ${PROJECT_SOURCE_DIR}/tests/scripts/*.py)
  foreach(script IN LISTS scripts)
    get_filename_component(stem ${script} NAME_WE)
    if(script MATCHES "\\.py$")
      set(interpreter python3)
    else()
      set(interpreter bash)
    endif()
    set(labels script)
    if(stem MATCHES "_browser$")
      list(APPEND labels browser)
    elseif(stem MATCHES "^examples")
      list(APPEND labels examples)
    endif()
    add_test(NAME script.${stem} COMMAND ${interpreter} ${script})
    set_tests_properties(script.${stem} PROPERTIES
      LABELS "${labels}" TIMEOUT ${script_timeout} ENVIRONMENT "${test_environment}")
  endforeach()
endif()
