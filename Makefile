EXTENSION    = idem_tool
MODULE_big   = idem_tool
OBJS         = $(patsubst %.c,%.o,$(wildcard src/*.c))
DATA         = $(wildcard sql/$(EXTENSION)--*.sql)

# Regression tests, in this order; sql/ and expected/ at the root
REGRESS      = setup canonical arguments reserve settle tokens takeover \
	memory results errors fingerprint retry_after replay callsites bulk \
	settings durable prepared columns layout triggers foreign_keys privileges \
	search_path lifecycle operators run gate handler two_phase sweep
REGRESS_OPTS = --load-extension=$(EXTENSION) --encoding=UTF8

ISOLATION    = $(patsubst test/isolation/specs/%.spec,%,$(wildcard test/isolation/specs/*.spec))
ISOLATION_OPTS = --inputdir=$(srcdir)/test/isolation --load-extension=$(EXTENSION)

TAP_TESTS    = 1
PROVE_TESTS ?= test/t/*.pl

PG_CFLAGS    = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers

PG_CONFIG   ?= pg_config
PGXS        := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# One header for all files
$(OBJS): $(wildcard $(srcdir)/src/*.h)
