EXTENSION    = idem_tool
MODULE_big   = idem_tool

# The rooms of the source, each with a header of what others may use; a room
# uses those after it
CALL_OBJS    = answer args autocommit callplan callscan callsite claim durable lookup owner report \
	request reserve session settle
GATE_OBJS    = begin function gate refuse register run tools
KEYS_OBJS    = canonical keys name printed siphash
OPERATE_OBJS = audit operate
SHARED_OBJS  = shmem stats
STORE_OBJS   = as_owner extension hint keylock keyprobe keystore layout row \
	rowwriter trust wait
WORKER_OBJS  = batch databases launcher sweep worker

OBJS         = src/idem_tool.o \
	$(WORKER_OBJS:%=src/worker/%.o) \
	$(GATE_OBJS:%=src/gate/%.o) \
	$(OPERATE_OBJS:%=src/operate/%.o) \
	$(CALL_OBJS:%=src/call/%.o) \
	$(STORE_OBJS:%=src/store/%.o) \
	$(KEYS_OBJS:%=src/keys/%.o) \
	$(SHARED_OBJS:%=src/shared/%.o)
DATA         = sql/idem_tool--1.0.sql
# Regression tests, in this order; sql/ and expected/ at the root
REGRESS      = setup canonical arguments reserve settle tokens takeover \
	memory results errors fingerprint retry_after replay callsites callscan bulk \
	settings unloaded durable prepared columns layout triggers foreign_keys \
	privileges search_path lifecycle operators run gate handler two_phase sweep
# On a server of whatever locale
REGRESS_OPTS = --load-extension=$(EXTENSION) --encoding=UTF8 --no-locale

# "alone" comes first.  Servers allow no prepared transactions unless asked to;
# where max_prepared_transactions is set, say so: make installcheck PREPARED=yes
SPECS        = bounded-waits call-sites changed-table dropped-tool insert-race \
	insert-race-indexes mismatch moved-rows one-action operators own-transaction \
	prepared recreated registrations reindex reserve-at-once reserve-waits \
	reserve-waits-committed rewritten-table run savepoints \
	serializable-neighbours settle-after-rival settle-at-once sql-reserve \
	sql-settle strangers sweep sweep-locks takeover tool-changes \
	tool-serializable triggers version-order waiters
ISOLATION    = alone $(filter-out $(if $(PREPARED),,prepared),$(SPECS))
ISOLATION_OPTS = --inputdir=$(srcdir)/test/isolation --load-extension=$(EXTENSION) \
	--encoding=UTF8 --no-locale

TAP_TESTS    = 1
PROVE_TESTS ?= test/t/*.pl

PG_CPPFLAGS  = -I$(srcdir)/src
PG_CFLAGS    = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers

PG_CONFIG   ?= pg_config
PGXS        := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# All headers for all files: there are few
$(OBJS) $(OBJS:.o=.bc): $(wildcard $(srcdir)/src/*.h $(srcdir)/src/*/*.h)

# Elsewhere there are no rooms to build in.  The paths are absolute, for make
# would find those of the source.
ROOMS        = $(sort $(patsubst %/,$(CURDIR)/%,$(dir $(OBJS))))
$(OBJS) $(OBJS:.o=.bc): | $(ROOMS)
$(ROOMS):
	$(MKDIR_P) $@
