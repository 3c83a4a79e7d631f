EXTENSION    = idem_tool
MODULE_big   = idem_tool
# What there is in the source, which a build elsewhere finds by srcdir
OBJS         = $(patsubst $(srcdir)/%.c,%.o,$(wildcard $(srcdir)/src/*.c))
DATA         = $(patsubst $(srcdir)/%,%,$(wildcard $(srcdir)/sql/$(EXTENSION)--*.sql))

# Regression tests, in this order; sql/ and expected/ at the root
REGRESS      = setup canonical arguments reserve settle tokens takeover \
	memory results errors fingerprint retry_after replay callsites bulk \
	settings unloaded durable prepared columns layout triggers foreign_keys \
	privileges search_path lifecycle operators run gate handler two_phase sweep
# On a server of whatever locale
REGRESS_OPTS = --load-extension=$(EXTENSION) --encoding=UTF8 --no-locale

# "alone" comes first.  Servers allow no prepared transactions unless asked to;
# where max_prepared_transactions is set, say so: make installcheck PREPARED=yes
SPECS        = $(patsubst $(srcdir)/test/isolation/specs/%.spec,%,$(wildcard $(srcdir)/test/isolation/specs/*.spec))
ISOLATION    = alone $(filter-out alone $(if $(PREPARED),,prepared),$(SPECS))
ISOLATION_OPTS = --inputdir=$(srcdir)/test/isolation --load-extension=$(EXTENSION) \
	--encoding=UTF8 --no-locale

TAP_TESTS    = 1
PROVE_TESTS ?= test/t/*.pl

PG_CFLAGS    = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers

PG_CONFIG   ?= pg_config
PGXS        := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# One header for all files
$(OBJS): $(wildcard $(srcdir)/src/*.h)

# Elsewhere there is no src/ to build in.  The path is absolute, for make would
# find the other one.
$(OBJS) $(OBJS:.o=.bc): | $(CURDIR)/src
$(CURDIR)/src:
	$(MKDIR_P) $@
