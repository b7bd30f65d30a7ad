# The server as its clients use it. Those with the openai client make .venv (tools/venv.sh) and are skipped, visibly, when pip
# reaches no index; so is the page's without chromium and lm_eval's until tools/venv.sh lm-eval has run.
foreach(name api faults attack tools load docs page lm_eval stress)
  add_test(NAME e2e_serve_${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/serve_${name}.py)
  set_tests_properties(e2e_serve_${name} PROPERTIES
    ENVIRONMENT "KADENCE_BINARY=$<TARGET_FILE:kadence>;KADENCE_TESTBED=$<TARGET_FILE:server_testbed>;KADENCE_SOURCE_DIR=${PROJECT_SOURCE_DIR};PYTHONDONTWRITEBYTECODE=1"
    TIMEOUT 600 LABELS e2e SKIP_RETURN_CODE 77 RESOURCE_LOCK venv)
endforeach()
set_property(TEST e2e_serve_attack e2e_serve_stress APPEND PROPERTY LABELS asan)
