# The one-command front; CMake does the work. See README.md.
#
#   make             release build, leaves build/quern
#   make demo        quantise a real model ten ways and print the table
#   make check       build with sanitizers, run every test
#   make check-full  the same, then ThreadSanitizer, fuzzing and valgrind
#   make bench       verify and time the kernels of this machine
#   make deps        install the Debian packages that the build needs
#   make fmt         format the C sources that differ from the last commit
#   make install     install to $(DESTDIR)$(PREFIX)
#   make clean       remove build/
SHELL = /bin/sh
PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
export JOBS

.PHONY: all deps demo check check-full bench fmt install clean
.NOTPARALLEL:

all:
	@scripts/build.sh

deps:
	@scripts/deps.sh build

demo: all
	@scripts/demo.sh

check:
	@scripts/check.sh

check-full: check
	@scripts/check_full.sh

bench: all
	build/quern bench kernels $(BENCHFLAGS)

fmt:
	@scripts/deps.sh fmt
	@git ls-files -z -mo --deduplicate --exclude-standard '*.c' '*.h' | xargs -0 -r clang-format -i

install: all
	DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)"

clean:
	rm -rf build
