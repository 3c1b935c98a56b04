# Compiles sources several at a time: the headers of PyTorch are read once for all of them, so a build
# of everything takes half the time. An edit then compiles its whole batch; who works on the C++ says
# `cmake -B build -DTN_BATCHES=OFF` once, and an edit compiles one file.
option(TN_BATCHES "Compile several C++ files at a time" ON)
set(TN_BATCH_SIZE 10 CACHE STRING "Most files of a batch")

function(compile_in_batches)
  foreach(target IN LISTS ARGV)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ${TN_BATCHES} UNITY_BUILD_MODE GROUP)
    get_target_property(sources ${target} SOURCES)
    set(count 0)
    foreach(source IN LISTS sources)
      # A file with options of its own (instruction sets, contraction) is compiled alone, which CMake
      # sees to, and without the precompiled header, which was compiled with others.
      get_source_file_property(options "${source}" COMPILE_OPTIONS)
      if(options)
        set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
        continue()
      endif()
      math(EXPR batch "${count} / ${TN_BATCH_SIZE}")
      math(EXPR count "${count} + 1")
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${batch}")
    endforeach()
  endforeach()
endfunction()
