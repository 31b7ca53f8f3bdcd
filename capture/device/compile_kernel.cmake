# cmake -DNVCC=nvcc -DSOURCE=x.cu -DOUT=x.fatbin -P compile_kernel.cmake: machine code of what this nvcc knows of `architectures`, and PTX
# of the newest, which drivers compile for later devices. What the assembler says of each function goes to OUT.txt. A warning is an error,
# and so are registers that the kernel spills, but for the few that it saves around calls once for each leaf: what waits for its own stack
# does not keep up with the memory.
set(architectures 80 90 100)
execute_process(COMMAND ${NVCC} --list-gpu-code OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
set(codes)
foreach(number ${architectures})
  if(known MATCHES "sm_${number}\n")
    list(APPEND compiled ${number})
    list(APPEND codes -gencode arch=compute_${number},code=sm_${number})
    set(newest ${number})
  endif()
endforeach()
if(NOT codes)
  message(FATAL_ERROR "${NVCC} knows none of the architectures ${architectures}")
endif()
execute_process(
  COMMAND ${NVCC} -fatbin -Xfatbin -compress-all -std=c++17 --fmad=false -Werror all-warnings -Xptxas -v ${codes}
          -gencode arch=compute_${newest},code=compute_${newest} -o ${OUT} ${SOURCE}
  RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
file(WRITE ${OUT}.txt "${said}")
execute_process(COMMAND ${NVCC} --version OUTPUT_VARIABLE version)
string(REGEX MATCH "release [0-9.]+" release "${version}")
string(REPLACE "release" "nvcc" release "${release}")
list(TRANSFORM compiled PREPEND "sm_")
list(JOIN compiled ", " compiled)
file(WRITE ${OUT}.of "${compiled} by ${release}") # what doctor says
if(failed)
  message(FATAL_ERROR "${said}")
endif()
string(REGEX MATCHALL "properties for lb_kernel_measure\n[^\n]* ([0-9]+) bytes spill stores" kernels "${said}")
if(kernels STREQUAL "")
  message(FATAL_ERROR "the assembler's report does not name the kernel; see ${OUT}.txt")
endif()
foreach(kernel ${kernels})
  string(REGEX REPLACE ".* ([0-9]+) bytes spill stores" "\\1" spilled "${kernel}")
  if(spilled GREATER 256)
    file(REMOVE ${OUT})
    message(FATAL_ERROR "the kernel spills ${spilled} bytes of registers; see ${OUT}.txt")
  endif()
endforeach()
