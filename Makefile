# Two commands are enough: `make demo` and `make test`. `make help` names the others.

CARGO  ?= cargo
CC     ?= cc
PYTHON ?= python3

PREFIX  ?= /usr/local
DESTDIR ?=

MODEL  ?= models/fathom-demo
PROMPT ?= Tell me a story about a fox named Lily.
THINK  ?=
# Users' words reach the shell through the environment, unexpanded: a prompt may hold quotes and dollars.
override PROMPT := $(value PROMPT)
export MODEL PROMPT

TARGET  := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)
ABI      = $(shell sed -n 's/^\#define FATHOM_ABI_VERSION \([0-9]*\).*/\1/p' include/fathom.h)

ifeq ($(shell uname -s),Darwin)
SHARED       := libfathom.dylib
SHARED_ABI    = libfathom.$(ABI).dylib
SHARED_FULL   = libfathom.$(VERSION).dylib
# What the standard library's own objects in libfathom.a need.
STATIC_LIBS  := -liconv -lSystem -lc -lm
else
SHARED       := libfathom.so
SHARED_ABI    = libfathom.so.$(ABI)
SHARED_FULL   = libfathom.so.$(VERSION)
STATIC_LIBS  := -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
endif

DEMO := $(TARGET)/demo-prefix

.PHONY: help build demo test sdk-venv install uninstall header bench fmt lint deny soak fuzz test-gpu clean

help:
	@echo 'make demo [PROMPT=…] [THINK=1] [MODEL=DIR]  build, ask the small model, print the answer as it comes'
	@echo 'make test                                   every test; FATHOM_REQUIRE_ALL=1 makes skips fail'
	@echo 'make sdk-venv [PYTHON=…]                    the official Python SDKs, for the tests that use them'
	@echo 'make install [PREFIX=DIR] [DESTDIR=DIR]     library, header, fathom.pc'
	@echo 'make header                                 write include/fathom.h again from src/capi'
	@echo 'make fuzz [FUZZ_TARGETS=…] [FUZZ_RUNS=N]    random requests, texts and outputs, guided by what they reach'
	@echo 'make bench [LARGE=DIR] [PYTHON=…]           speed, beside other engines in the same run'
	@echo 'make fmt lint deny                          what CI checks besides the tests'

build:
	$(CARGO) build --locked --release --lib

# The demonstration is built like a stranger's program: from an installed tree, with what pkg-config says.
demo: build
	@$(MAKE) -s install-files PREFIX='$(abspath $(DEMO))' DESTDIR=
	@pkg=$${PKG_CONFIG:-pkg-config}; export PKG_CONFIG_PATH='$(abspath $(DEMO))/lib/pkgconfig'; \
	if command -v "$$pkg" >/dev/null 2>&1; then flags=$$("$$pkg" --cflags --libs fathom) || exit 1; \
	else echo "demo: pkg-config is missing, so -I and -L are given directly; install it with: apt-get install pkg-config" >&2; \
	  flags="-I$(abspath $(DEMO))/include -L$(abspath $(DEMO))/lib -lfathom"; fi; \
	$(CC) -std=c99 -O2 -Wall -Wextra examples/c/chat.c $$flags -Wl,-rpath,'$(abspath $(DEMO))/lib' -o '$(TARGET)/chat'
	@'$(TARGET)/chat' $(if $(filter-out 0,$(THINK)),--think) "$$MODEL" "$$PROMPT"

test:
	@tools/check-toolchain
	$(CARGO) test --locked
	$(CARGO) test --locked --features fault-injection --test panics

# The SDKs of OpenAI and Anthropic talk to the library in tests/sdk, which look for them here. Needs the network, so no
# test does this by itself.
sdk-venv:
	$(PYTHON) -m venv target/sdk-venv
	target/sdk-venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/sdk/requirements.txt

install: build install-files

# Also takes what an earlier `make build` left: packagers build as one user and install as another.
.PHONY: install-files
install-files:
	@test -n '$(ABI)' || { echo "install: include/fathom.h names no ABI version; make it with: make header" >&2; exit 1; }
	install -d '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(PREFIX)/lib/pkgconfig'
	install -m 644 include/fathom.h '$(DESTDIR)$(PREFIX)/include/fathom.h'
	install -m 644 '$(RELEASE)/libfathom.a' '$(DESTDIR)$(PREFIX)/lib/libfathom.a'
	install -m 755 '$(RELEASE)/$(SHARED)' '$(DESTDIR)$(PREFIX)/lib/$(SHARED_FULL)'
	ln -sf '$(SHARED_FULL)' '$(DESTDIR)$(PREFIX)/lib/$(SHARED_ABI)'
	ln -sf '$(SHARED_ABI)' '$(DESTDIR)$(PREFIX)/lib/$(SHARED)'
	sed -e 's|@VERSION@|$(VERSION)|' -e 's|@ABI@|$(ABI)|' -e 's|@STATIC_LIBS@|$(STATIC_LIBS)|' fathom.pc.in \
	  > '$(DESTDIR)$(PREFIX)/lib/pkgconfig/fathom.pc'

uninstall:
	rm -f '$(DESTDIR)$(PREFIX)/include/fathom.h' '$(DESTDIR)$(PREFIX)/lib/pkgconfig/fathom.pc' \
	  '$(DESTDIR)$(PREFIX)/lib/libfathom.a' '$(DESTDIR)$(PREFIX)/lib/$(SHARED)' \
	  '$(DESTDIR)$(PREFIX)/lib/$(SHARED_ABI)' '$(DESTDIR)$(PREFIX)/lib/$(SHARED_FULL)'

header:
	FATHOM_BLESS=1 $(CARGO) test --locked --test header

# LARGE: where make_large.py put its checkpoints (native and bf16 below it); without it only the small model is timed.
bench:
	$(PYTHON) benches/peers/run_all.py --demo '$(MODEL)' $(if $(LARGE),--large '$(LARGE)') --out '$(TARGET)/bench' $(BENCH)

fmt:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --locked --all-targets -- -D warnings

# Advisories need the network and change by the day, so they are not part of this: `cargo deny check advisories`.
deny:
	$(CARGO) deny --locked check bans licenses sources

soak:
	@echo "make soak: not there yet; the long mixed-load run comes with the engine's fault and preemption work" >&2; exit 1

# Requests of each protocol, texts and outputs, mutated towards code that none has reached yet. The search starts from
# the vectors in tests/data and from what earlier runs left in target/fuzz/corpus; an input that fails is kept in
# target/fuzz/artifacts, and the target's program run on that file fails again. Needs nothing but Rust and a C++
# compiler. FUZZ_RUNS is for each target, FUZZ_FLAGS are more of libFuzzer's (-max_total_time=600, -fork=8).
FUZZ_TARGETS ?= chat responses messages conversation tokenizer stream
FUZZ_RUNS    ?= 10000000
FUZZ_FLAGS   ?=
FUZZ         := $(abspath $(TARGET))/fuzz

fuzz:
	@command -v "$${CXX:-c++}" >/dev/null 2>&1 || { echo "fuzz: no C++ compiler, which builds the fuzzer's runtime; install it with: apt-get install g++" >&2; exit 1; }
	CARGO_TARGET_DIR='$(FUZZ)' RUSTC_WRAPPER='$(CURDIR)/fuzz/rustc' $(CARGO) build --locked --release --manifest-path fuzz/Cargo.toml
	'$(FUZZ)/release/seeds' '$(FUZZ)/corpus'
	@for target in $(FUZZ_TARGETS); do \
	  length=4096; words=requests; \
	  case $$target in tokenizer) words=tokenizer ;; stream) words=stream; length=512 ;; esac; \
	  mkdir -p "$(FUZZ)/artifacts/$$target"; echo "fuzz: $$target, $(FUZZ_RUNS) inputs"; \
	  "$(FUZZ)/release/$$target" "$(FUZZ)/corpus/$$target" -dict="fuzz/$$words.dict" -artifact_prefix="$(FUZZ)/artifacts/$$target/" \
	    -runs=$(FUZZ_RUNS) -max_len=$$length -timeout=10 -rss_limit_mb=4096 -verbosity=0 -print_final_stats=1 $(FUZZ_FLAGS) || exit 1; \
	done
ifneq ($(filter tokenizer,$(FUZZ_TARGETS)),)
	FATHOM_ORACLE_STRINGS=1000000 $(CARGO) test --locked --test tokenizer_oracle
endif

test-gpu:
	@echo "make test-gpu: not there yet; the CUDA backend and its tests come with the CUDA work" >&2; exit 1

clean:
	$(CARGO) clean
