# The ways in. `make run` and `make test` set up whatever is missing on a fresh machine.
BUILD := build

.PHONY: run test test-slow build setup check clean

run: setup
	@tools/build.sh $(BUILD) snug_cli
	@tools/demo.sh $(BUILD)

test: build
	ctest --test-dir $(BUILD) -j$$(nproc) --output-on-failure --label-exclude slow --no-tests=error

test-slow: build
	ctest --test-dir $(BUILD) --output-on-failure --label-regex slow --no-tests=error

build: setup
	@tools/build.sh $(BUILD)

setup:
	@tools/setup.sh

check:
	tools/check_format.sh
	python3 tools/check_includes.py

clean:
	rm -rf $(BUILD) build-*
