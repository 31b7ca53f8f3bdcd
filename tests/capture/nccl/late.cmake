# Streams that run late, and graphs, recorded: cmake -DPROGRAM= -DLIBRARY= -DRECORDER= -DFOLDER= -P late.cmake
include(${CMAKE_CURRENT_LIST_DIR}/recorded.cmake)
set(ENV{ASAN_OPTIONS} detect_leaks=0) # of streams, which a driver has to the end
run_recorded(late 3 30)
