# The owner of the database owns the extension's objects, and can make of them
# what he likes.  The calls then say so (55000), or still tell the truth, but the
# server goes on: no crash, and nothing that only a bug could explain.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Attack;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_arena('deformed');
my $keys = 'idem.idempotency_keys';

# What is done to a column, or to a whole object
my %columns = (
	idempotency_keys => [
		qw(scope key owner created_at reserved_at token attempt fingerprint
		  holder maybe_ran expires_at completed_at status result)
	],
	idem_tools => [
		qw(tool function effect reservation_ttl result_ttl takeover
		  fallback_ttl description)
	],
	idem_audit => [
		qw(at role session_role action scope key old_status new_status)
	]);
my %deformed = (
	'status, unchecked and empty' => [
		"ALTER TABLE $keys DROP CONSTRAINT idempotency_keys_status_check",
		"UPDATE $keys SET status = ''"
	],
	'status, unchecked and unheard of' => [
		"ALTER TABLE $keys DROP CONSTRAINT idempotency_keys_status_check",
		"UPDATE $keys SET status = 'zzz'"
	],
	'status, unchecked and long' => [
		"ALTER TABLE $keys DROP CONSTRAINT idempotency_keys_status_check",
		"UPDATE $keys SET status = repeat('x', 100000)"
	],
	'fingerprints of another length' => ["UPDATE $keys SET fingerprint = ''"],
	'very long fingerprints' =>
	  ["UPDATE $keys SET fingerprint = convert_to(repeat('x', 100000), 'UTF8')"],
	'numbers at their ends' => [
		"UPDATE $keys SET token = 9223372036854775807, attempt = 2147483647, expires_at = now()"
	],
	'numbers at their other ends' =>
	  ["UPDATE $keys SET token = (-9223372036854775808), attempt = (-2147483648)"],
	'infinite times' => ["UPDATE $keys SET created_at = 'infinity', expires_at = 'infinity'"],
	'infinitely old' => ["UPDATE $keys SET created_at = '-infinity', expires_at = '-infinity'"],
	'times at the end' => [
		"UPDATE $keys SET created_at = '294276-12-31', expires_at = '294276-12-31', reserved_at = '294276-12-31'"
	],
	'times at the beginning' => ["UPDATE $keys SET created_at = '4713-01-01 BC', expires_at = '4713-01-01 BC'"],
	'owners too long' => ["UPDATE $keys SET owner = repeat('x', 1000)"],
	'owners without a name' => ["UPDATE $keys SET owner = ''"],
	'no primary key' => ["ALTER TABLE $keys DROP CONSTRAINT idempotency_keys_pkey"],
	'another primary key' => [
		"ALTER TABLE $keys DROP CONSTRAINT idempotency_keys_pkey",
		"ALTER TABLE $keys ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (token)"
	],
	'a wider primary key' => [
		"ALTER TABLE $keys DROP CONSTRAINT idempotency_keys_pkey",
		"ALTER TABLE $keys ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key, scope, token)"
	],
	'a deferrable primary key' => [
		"ALTER TABLE $keys DROP CONSTRAINT idempotency_keys_pkey",
		"ALTER TABLE $keys ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key, scope) DEFERRABLE"
	],
	'unlogged' => ["ALTER TABLE $keys SET UNLOGGED"],
	'row security forced' => ["ALTER TABLE $keys FORCE ROW LEVEL SECURITY",
		'ALTER TABLE idem.idem_audit FORCE ROW LEVEL SECURITY',
		'ALTER TABLE idem.idem_tools FORCE ROW LEVEL SECURITY',
		"DROP POLICY idempotency_keys_owner ON $keys" ],
	'a column whose default fails' => ["ALTER TABLE $keys ADD COLUMN more integer",
		"ALTER TABLE $keys ALTER COLUMN more SET DEFAULT 1 / (now() < now())::integer" ],
	'a generated column that fails' => ["TRUNCATE $keys",
		"ALTER TABLE $keys ADD COLUMN more integer GENERATED ALWAYS AS (1 / (attempt - 1)) STORED" ],
	'a rule instead' => [
		"CREATE RULE deformed AS ON UPDATE TO $keys DO INSTEAD NOTHING",
		'CREATE RULE deformed AS ON INSERT TO idem.idem_audit DO INSTEAD NOTHING',
		'CREATE RULE deformed AS ON INSERT TO idem.idem_tools DO INSTEAD NOTHING'
	],
	'a rule as well' => [
		"CREATE RULE deformed AS ON UPDATE TO $keys DO ALSO SELECT 1",
		'CREATE RULE deformed AS ON INSERT TO idem.idem_audit DO ALSO SELECT 1',
		'CREATE RULE deformed AS ON DELETE TO idem.idem_tools DO ALSO SELECT 1'
	],
	'a parent' => [ 'CREATE TABLE idem.parent (key text COLLATE "C" NOT NULL)', "ALTER TABLE $keys INHERIT idem.parent" ],
	'a child' => ["CREATE TABLE idem.child () INHERITS ($keys)",
		"INSERT INTO idem.child SELECT * FROM $keys" ],
	'a partition' => [
		"CREATE TABLE idem.parent (LIKE $keys) PARTITION BY LIST (scope)",
		"ALTER TABLE idem.parent ATTACH PARTITION $keys FOR VALUES IN ('')"
	],
	'tools without checks' => [
		(
			map { "ALTER TABLE idem.idem_tools DROP CONSTRAINT idem_tools_${_}check" }
			  '', 'effect_', 'reservation_ttl_', 'result_ttl_', 'takeover_', 'fallback_ttl_', 'fallback_'
		)[ 1 .. 6 ],
		q{UPDATE idem.idem_tools SET effect = '', reservation_ttl = '-1 day', result_ttl = '-100000 years', takeover = '-1 day', fallback_ttl = '-1 day', function = ''}
	],
	'tools that are writes, for too long' => [
		(
			map { "ALTER TABLE idem.idem_tools DROP CONSTRAINT idem_tools_${_}check" }
			  'reservation_ttl_', 'result_ttl_', 'takeover_', 'fallback_ttl_'
		),
		q{UPDATE idem.idem_tools SET effect = 'write', reservation_ttl = '170000000 years', result_ttl = '170000000 years', takeover = '170000000 years', fallback_ttl = '170000000 years', function = '"'}
	],
	'no key of tools' => ['ALTER TABLE idem.idem_tools DROP CONSTRAINT idem_tools_pkey'],
	'a sequence at its end' => [
		q{SELECT setval('idem.idempotency_keys_token_seq', 9223372036854775807)}
	],
	'a sequence that goes back' => [
		'ALTER SEQUENCE idem.idempotency_keys_token_seq INCREMENT -1 MINVALUE -10 MAXVALUE 10 START 1 RESTART 0 CYCLE'
	],
	'a small sequence' => ['ALTER SEQUENCE idem.idempotency_keys_token_seq AS smallint'],
	'FUNCTIONS that are definer\'s' => ['SECURITY DEFINER'],
	'FUNCTIONS that are called for NULL' => ['CALLED ON NULL INPUT'],
	'FUNCTIONS that are strict' => ['STRICT'],
	'FUNCTIONS that are immutable' => ['IMMUTABLE'],
	'FUNCTIONS that are parallel' => ['PARALLEL SAFE'],
	'FUNCTIONS that set what they like' => [
		q{SET search_path = ''},
		q{SET idem_tool.scope = 'x'}, q{SET TimeZone = 'Asia/Tokyo'}
	]);

# a column that is said to be NOT NULL, but is not
$deformed{'a constraint that is not valid'} = [
	"ALTER TABLE $keys ALTER COLUMN status DROP NOT NULL",
	"UPDATE $keys SET status = NULL",
	"ALTER TABLE $keys ADD CONSTRAINT later NOT NULL status NOT VALID"
  ]
  if $node->pg_version >= 18;

# what can be done to every column
foreach my $table (sort keys %columns)
{
	foreach my $column (@{ $columns{$table} })
	{
		my $alter = "ALTER TABLE idem.$table";

		# the extension would go with a member that depends on the column
		my @free = (
			'ALTER EXTENSION idem_tool DROP VIEW idem.idem_stuck',
			'DROP VIEW idem.idem_stuck');

		$deformed{"$table: $column dropped"} = [ @free, "$alter DROP COLUMN $column CASCADE" ];
		$deformed{"$table: $column is null"} = [
			$table eq 'idempotency_keys' && $column =~ /^(?:scope|key)$/ ? "$alter DROP CONSTRAINT idempotency_keys_pkey" : (),
			$table eq 'idem_tools' && $column eq 'tool' ? "$alter DROP CONSTRAINT idem_tools_pkey" : (),
			"$alter ALTER COLUMN $column DROP NOT NULL",
			"UPDATE idem.$table SET $column = NULL"
		];
		$deformed{"$table: $column of another type"} = [
			@free,
			"$alter DROP COLUMN $column CASCADE",
			"$alter ADD COLUMN $column point NOT NULL DEFAULT '(1, 2)'"
		];
		next if $table ne 'idempotency_keys';
		$deformed{"$table: $column renamed"} = ["$alter RENAME COLUMN $column TO more"];
		$deformed{"$table: $column moved"} = [
			@free,
			"$alter ADD COLUMN more text",
			"UPDATE idem.$table SET more = $column",
			"$alter DROP COLUMN $column CASCADE",
			"$alter RENAME COLUMN more TO $column"
		];
	}
}

# what can be put in a table's place
foreach my $table (sort keys %columns)
{
	my $away = "ALTER TABLE idem.$table RENAME TO away";
	my %instead = (
		'view' => "CREATE VIEW idem.$table AS TABLE idem.away",
		'materialized view' => "CREATE MATERIALIZED VIEW idem.$table AS TABLE idem.away",
		'partitioned table' => "CREATE TABLE idem.$table (LIKE idem.away INCLUDING ALL) PARTITION BY LIST (@{[ $table eq 'idem_tools' ? 'tool' : 'scope' ]})",
		'plain table' => "CREATE TABLE idem.$table (LIKE idem.away INCLUDING ALL)",
		'sequence' => "CREATE SEQUENCE idem.$table",
		'type' => "CREATE TYPE idem.$table AS (key text)",
		'nothing' => 'SELECT 1');

	$deformed{"$table replaced by a $_"} = [ $away, $instead{$_} ] foreach keys %instead;
	$deformed{"$table, no member and replaced by a $_"} =
	  [ "ALTER EXTENSION idem_tool DROP TABLE idem.$table", $away, $instead{$_} ]
	  foreach 'view', 'plain table';
}
$deformed{"the sequence replaced by a $_->[0]"} = [
	'ALTER SEQUENCE idem.idempotency_keys_token_seq RENAME TO away', $_->[1]
  ]
  foreach [ 'table', 'CREATE TABLE idem.idempotency_keys_token_seq (last_value bigint, log_cnt bigint, is_called boolean)' ],
  [ 'view', 'CREATE VIEW idem.idempotency_keys_token_seq AS SELECT 1 AS last_value' ],
  [ 'hole', 'SELECT 1' ];

foreach my $type ('idem_answer', 'idem_begun')
{
	my $alter = "ALTER TYPE idem.$type";

	$deformed{"$type, $_->[0]"} = [ map { "$alter $_" } @$_[ 1 .. $#$_ ] ]
	  foreach [ 'one more', 'ADD ATTRIBUTE more text' ],
	  [ 'one less', 'DROP ATTRIBUTE retry_after' ],
	  [ 'one moved', 'DROP ATTRIBUTE result', 'ADD ATTRIBUTE result jsonb' ],
	  [ 'another type', 'ALTER ATTRIBUTE status TYPE point' ],
	  [ 'a number for a text', 'ALTER ATTRIBUTE token TYPE text' ],
	  [ 'other names', 'RENAME ATTRIBUTE status TO more' ],
	  [ 'renamed', 'RENAME TO away' ],
	  [ 'elsewhere', 'SET SCHEMA public' ];
}

# What can be called; NULL wherever that is not refused at once
my @calls = (
	q{SELECT * FROM idem.idem_reserve('new')},
	q{SELECT (idem.idem_reserve('new 2', request => '{"a": 1}')).*},
	q{SELECT * FROM idem.idem_reserve('treasure kept', request => '{"a": 1}')},
	q{SELECT * FROM idem.idem_reserve('treasure open', '1 hour', '{"a": 1}', wait => '10 ms', takeover => '1 hour', holder => 'me')},
	q{SELECT idem.idem_complete('treasure open', '{"b": 1}', 2)},
	q{SELECT idem.idem_complete('treasure kept', '{"b": 1}', 1)},
	q{SELECT idem.idem_fail('treasure open', '{"b": 1}', 2)},
	q{SELECT idem.idem_extend('treasure open', '1 hour', 2)},
	q{SELECT idem.idem_release('treasure open', 2)},
	q{SELECT idem.idem_abandon('treasure open', 2)},
	q{SELECT * FROM idem.idem_lookup('treasure kept')},
	q{SELECT * FROM idem.idem_lookup('treasure open')},
	q{SELECT idem.idem_run('run', 'shared.same(jsonb)', '{}')},
	q{SELECT idem.idem_call('honest read', '{}')},
	q{SELECT idem.idem_call('honest tool', '{}')},
	q{SELECT idem.idem_call('honest tool', '{}', 'a key')},
	q{SELECT * FROM idem.idem_begin('honest tool', '{}')},
	q{SELECT * FROM idem.idem_begin('honest tool', '{}', 'a key')},
	q{SELECT (idem.idem_begin('honest tool', '{}', 'another key')).*},
	q{SELECT idem.idem_register('honest tool', description => 'again')},
	q{SELECT idem.idem_register('honest tool 2', 'shared.same(jsonb)', 'read')},
	q{SELECT idem.idem_unregister('honest tool 2')},
	q{SELECT idem.idem_resolve('treasure open', 'done', '1')},
	q{SELECT idem.idem_resolve('treasure open', 'done', '1', force => true)},
	q{SELECT idem.idem_resolve('treasure new', 'failed', '1', create_missing => true)},
	q{SELECT idem.idem_forget('treasure kept')},
	'SELECT * FROM idem.idem_sweep()',
	'TABLE idem.idem_stuck',
	'TABLE idem.idem_tools',
	'TABLE idem.idem_audit',
	'TABLE idem.idem_stats',
	'TABLE idem.idempotency_keys',
	q{SELECT idem.idem_memory_end(NULL, NULL)},
	q{SELECT idem.idem_memory_end('in_progress', NULL)},
	'SELECT idem.idem_canonical(NULL)',
	'SELECT idem.idem_fingerprint(NULL)',
	'SELECT idem.idem_may_act(NULL)',
	q{SELECT idem.idem_may_act('victim')},
	'SELECT idem.idem_key(NULL, NULL, NULL)',
	'SELECT idem.idem_step_key(NULL, NULL)',
	'SELECT idem.idem_call_key(NULL, NULL, NULL)',
	'SELECT idem.idem_reserve(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)',
	'SELECT idem.idem_complete(NULL, NULL, NULL, NULL, NULL)',
	'SELECT idem.idem_fail(NULL, NULL, NULL, NULL, NULL)',
	'SELECT idem.idem_extend(NULL, NULL, NULL, NULL)',
	'SELECT idem.idem_release(NULL, NULL, NULL)',
	'SELECT idem.idem_abandon(NULL, NULL, NULL)',
	'SELECT * FROM idem.idem_lookup(NULL, NULL)',
	'SELECT idem.idem_run(NULL, NULL, NULL, NULL, NULL, NULL)',
	'SELECT idem.idem_call(NULL, NULL, NULL, NULL, NULL)',
	'SELECT idem.idem_begin(NULL, NULL, NULL, NULL, NULL, NULL)',
	'SELECT idem.idem_resolve(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)',
	'SELECT idem.idem_forget(NULL, NULL)',
	'SELECT idem.idem_register(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)',
	'SELECT idem.idem_unregister(NULL)',
	'SELECT idem.idem_grant(NULL, NULL)',
	'SELECT idem.idem_revoke(NULL, NULL)');

# Deform the objects of a database as its owner
sub deform
{
	my ($database, $what) = @_;
	my $session = as_role($database, 'dbo');
	my @sql = @{ $deformed{$what} };

	@sql = map {
		my $to = $_;
		map { "ALTER FUNCTION $_ $to" } split(/\n/, $session->query(<<'END'))
SELECT p.oid::regprocedure FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = pronamespace
WHERE nspname = 'idem' AND prolang = (SELECT oid FROM pg_language WHERE lanname = 'c')
END
	} @sql
	  if $what =~ /^FUNCTIONS/;
	# which loads the library, and makes its settings known
	$session->query(q{SELECT idem.idem_memory_end('done', now())});
	$session->query($_) foreach @sql;
	$session->drop;
	return;
}

# Make all calls; what went wrong beyond what a call may say
sub wrongs
{
	my ($database, $what) = @_;
	my @wrongs;
	my $session = as_role($database, 'ops');

	$session->query(q{SET statement_timeout = '10s'});
	if ($what =~ /parallel/)
	{
		# renamed in 16
		$session->run("SET $_ = on") foreach 'force_parallel_mode', 'debug_parallel_query';
	}
	foreach my $call (@calls)
	{
		my $answer = $session->run($call);

		if ($answer->{closed})
		{
			push @wrongs, "$call: closed the connection";
			last;
		}
		# PostgreSQL has no better word for a function that is not what it says
		push @wrongs, "$call: $answer->{sqlstate} $answer->{message}"
		  if $answer->{sqlstate} =~ /^(?:XX|57|58|53|08)/
		  && $answer->{message} !~ /during a parallel operation/;
	}
	$session->drop;
	return @wrongs;
}

# One database, where the owner makes the extension anew each time
my $database = new_arena('bare');

as_role($database)->query('GRANT victim TO ops');
foreach my $what (sort keys %deformed)
{
	my $from = -s $node->logfile;

	my $owner = as_role($database, 'dbo');
	$owner->query($_)
	  foreach 'CREATE SCHEMA idem', 'CREATE EXTENSION idem_tool SCHEMA idem',
	  people(), q{SELECT idem.idem_grant('ops')};
	my $superuser = as_role($database);
	$superuser->query($_) foreach treasure();
	deform($database, $what);
	my @wrongs = wrongs($database, $what);
	push @wrongs, slurp_file($node->logfile, $from) =~
	  /(.*(?:terminated by signal|TRAP:|ERROR:  unexpected|cache lookup failed).*)/g;
	is(join("\n", @wrongs), '', $what);
	$owner->query($_)
	  foreach 'DROP EXTENSION idem_tool CASCADE', 'DROP SCHEMA idem CASCADE';
	$_->drop foreach $owner, $superuser;
}
leave_arena($database);
done_testing();
