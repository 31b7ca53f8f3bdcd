# One short storm of calls, recorded: cmake -DPROGRAM= -DLIBRARY= -DRECORDER= -DFOLDER= -DFORKS= -P storm.cmake
#
# Calls fail, and libraries are opened and closed meanwhile; with FORKS a second time, where threads fork besides. AddressSanitizer does
# not allow that: where a library was being opened, a lock of its own stays locked in the child.
include(${CMAKE_CURRENT_LIST_DIR}/recorded.cmake)
set(ENV{STANDIN_NCCL_FAIL} 7)
run_recorded(calm 4 12000 0)
if(FORKS)
  run_recorded(forks 4 12000 ${FORKS})
endif()
