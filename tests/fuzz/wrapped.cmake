# The calls that tests/fuzz/memory_files.c answers for paths in memory.
set(MEMORY_FILES_WRAPPED open close fstat stat access mmap munmap opendir fopen)
list(TRANSFORM MEMORY_FILES_WRAPPED PREPEND "-Wl,--wrap=" OUTPUT_VARIABLE MEMORY_FILES_LINK)
