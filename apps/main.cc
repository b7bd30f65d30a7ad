#include "apps/cli.h"

int main(int argc, char** argv) { return kadence::apps::run_cli(argc, argv); }
