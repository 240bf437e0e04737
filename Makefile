# The ways in. `make run` and `make test` set up whatever is missing on a fresh machine.
BUILD := build

.PHONY: run test test-slow test-long build setup check clean

run: setup
	@tools/build.sh $(BUILD) snug_cli
	@tools/demo.sh $(BUILD)

test: build
	ctest --test-dir $(BUILD) -j$$(nproc) --output-on-failure --label-exclude slow --no-tests=error

test-slow: build
	ctest --test-dir $(BUILD) --output-on-failure --label-regex slow --no-tests=error

# Random suites that begin elsewhere and go on for longer, and every test under the address sanitizer: an hour or two, by hand.
test-long: build
	SNUG_SEED=$$(date +%s) SNUG_FUZZ=200000 SNUG_ROUNDS=1000 SNUG_KILLS=100 SNUG_PROGRAMS=2000 SNUG_FIRST_PROGRAM=$$(date +%s) \
	  ctest --test-dir $(BUILD) --output-on-failure --label-regex long --no-tests=error --timeout 7200
	cmake --preset asan -DSNUG_TORCH="$$(cat build/torch.path)" >/dev/null
	cmake --build --preset asan-whole
	ctest --preset asan-whole -j$$(nproc) --no-tests=error

build: setup
	@tools/build.sh $(BUILD)

setup:
	@tools/setup.sh

check:
	tools/check_format.sh
	python3 tools/check_includes.py

clean:
	rm -rf $(BUILD) build-*
