# Who was given too much, TRIGGER and REFERENCES above all, has code of his run
# when others write to the tables: never as anybody but himself.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Attack;
use Test::More;

my $node = start_arena('triggers');

# since 18 PostgreSQL runs an AFTER trigger as whoever caused it
my $by_writer = $node->pg_version < 18;

# what every second deployment has done
my @given = (
	'GRANT ALL ON ALL TABLES IN SCHEMA idem TO app',
	'GRANT ALL ON ALL SEQUENCES IN SCHEMA idem TO app');

# a lapsed lease and a result past its memory, for the sweep
my @for_the_sweep = (
	q{SELECT FROM idem.idem_reserve('honest lapsed', '1 us')},
	q{SELECT idem.idem_complete('honest done', '1', token) FROM idem.idem_reserve('honest done')},
	q{SELECT idem.idem_complete('honest over', '1', token, '1 us') FROM idem.idem_reserve('honest over')});

# whoever writes to a table
my %writers = (
	'idempotency_keys' => {
		'a caller' => [ [ 'victim', q{SELECT FROM idem.idem_reserve('honest')} ] ],
		'a caller who completes' => [
			[
				'victim',
				q{SELECT idem.idem_complete('honest', '1', token) FROM idem.idem_reserve('honest')}
			]
		],
		'a superuser' => [ [ undef, q{SELECT FROM idem.idem_reserve('honest')} ] ],
		'an operator' => [
			[
				'ops',
				q{SELECT idem.idem_resolve('honest', 'done', create_missing => true)}
			]
		],
		'an operator who forgets' =>
		  [ [ 'ops', q{SELECT idem.idem_forget('honest done')} ] ],
		'the sweep' => [ [ 'ops', 'SELECT idem.idem_sweep()' ] ]
	},
	'idem_audit' => {
		'an operator' => [ [ 'ops', q{SELECT idem.idem_forget('honest')} ] ],
		'the sweep' => [ [ 'ops', 'SELECT idem.idem_sweep()' ] ]
	},
	'idem_tools' => {
		'an operator' =>
		  [ [ 'ops', q{SELECT idem.idem_register('honest')} ] ],
		'an operator who registers again' => [
			[
				'ops',
				q{SELECT idem.idem_register('treasure', description => 'treasure')}
			]
		],
		'an operator who unregisters' =>
		  [ [ 'ops', q{SELECT idem.idem_unregister('honest tool')} ] ]
	});

# a trigger for each row, on every way to every table
foreach my $table (sort keys %writers)
{
	foreach my $writer (sort keys %{ $writers{$table} })
	{
		attack(
			"trigger on $table, $writer",
			given => \@given,
			does => [
				@for_the_sweep,
				"CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON idem.$table FOR EACH ROW EXECUTE FUNCTION app.trap()"
			],
			others => $writers{$table}{$writer},
			weakened => [ 'ALTER FUNCTION app.trap() OWNER TO postgres' ],
			gains => qr/code of app ran as/);
	}
}

# and what it is to have the owner's power, if that were a superuser's
attack(
	'trigger on a table of a superuser',
	given => \@given,
	does => [
		@for_the_sweep,
		'CREATE TRIGGER trap BEFORE UPDATE OR DELETE ON idem.idempotency_keys FOR EACH ROW EXECUTE FUNCTION app.trap()'
	],
	others => $writers{idempotency_keys}{'the sweep'},
	weakened => [
		'ALTER TABLE idem.idempotency_keys OWNER TO postgres',
		'ALTER FUNCTION app.trap() OWNER TO postgres'
	],
	gains => qr/role app: f.* became t/);

# other kinds of triggers, and conditions; built-in functions can be anybody's
my $builtin = 'EXECUTE FUNCTION suppress_redundant_updates_trigger()';
my %kinds = (
	'for each statement' => [
		'CREATE TRIGGER trap AFTER {event} ON idem.{table} FOR EACH STATEMENT EXECUTE FUNCTION app.trap()'
	],
	'with a transition table' => [
		'CREATE TRIGGER trap AFTER {event} ON idem.{table} REFERENCING {row} TABLE AS seen FOR EACH STATEMENT EXECUTE FUNCTION app.trap()'
	],
	'deferred' => [
		'CREATE CONSTRAINT TRIGGER trap AFTER {event} ON idem.{table} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.trap()'
	],
	'with a function as condition' =>
	  [ "CREATE TRIGGER trap BEFORE {event} ON idem.{table} FOR EACH ROW WHEN (app.note('condition')) $builtin" ],
	'with an operator as condition' => [
		q{CREATE FUNCTION app.compare(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN app.note('operator'); END $$},
		'CREATE OPERATOR app.=== (FUNCTION = app.compare, LEFTARG = text, RIGHTARG = text)',
		"CREATE TRIGGER trap BEFORE {event} ON idem.{table} FOR EACH ROW WHEN ({row}.key OPERATOR(app.===) '') $builtin"
	],
	'with a domain in its condition' => [
		q{CREATE DOMAIN app.trapped AS text CHECK (app.note('domain'))},
		"CREATE TRIGGER trap BEFORE {event} ON idem.{table} FOR EACH ROW WHEN ({row}.key::app.trapped IS NOT NULL) $builtin"
	],
	# an array that is built is no NULL, which PostgreSQL knows since 19
	'with an array of domains in its condition' => [
		q{CREATE DOMAIN app.trapped AS text CHECK (app.note('array'))},
		"CREATE TRIGGER trap BEFORE {event} ON idem.{table} FOR EACH ROW WHEN (cardinality(ARRAY[{row}.key]::app.trapped[]) = 1) $builtin"
	],
	'with a domain in a row in its condition' => [
		q{CREATE DOMAIN app.trapped AS text CHECK (app.note('row'))},
		'CREATE TYPE app.pair AS (a text, b app.trapped)',
		"CREATE TRIGGER trap BEFORE {event} ON idem.{table} FOR EACH ROW WHEN (ROW('', {row}.key)::app.pair IS NOT NULL) $builtin"
	],
	'with a cast in its condition' => [
		q{CREATE TYPE app.mood AS ENUM ('fine')},
		q{CREATE FUNCTION app.cast(text) RETURNS app.mood LANGUAGE plpgsql AS $$ BEGIN PERFORM app.note('cast'); RETURN 'fine'; END $$},
		'CREATE CAST (text AS app.mood) WITH FUNCTION app.cast(text)',
		"CREATE TRIGGER trap BEFORE {event} ON idem.{table} FOR EACH ROW WHEN ({row}.key::app.mood = 'fine') $builtin"
	]);

# the sweep updates and deletes, an operator's trace is an insertion
foreach my $kind (sort keys %kinds)
{
	foreach my $way (
		[ 'idempotency_keys', 'UPDATE', 'NEW', 'the sweep' ],
		[ 'idempotency_keys', 'DELETE', 'OLD', 'the sweep' ],
		[ 'idem_audit', 'INSERT', 'NEW', 'an operator' ])
	{
		my %word;
		(@word{qw(table event row)}, my $writer) = @$way;

		# what is looked at is the same for all conditions
		next if $kind =~ /condition/ && $word{event} eq 'DELETE';

		# never fires there, in nobody's name
		next if $kind eq 'deferred' && $word{table} eq 'idem_audit';
		attack(
			"trigger on $word{event} of $word{table} $kind",
			given => \@given,
			does => [
				@for_the_sweep,
				map { s/\{(\w+)\}/$word{$1}/gr } @{ $kinds{$kind} }
			],
			others => $writers{ $word{table} }{$writer},
			weakened => [
				'ALTER FUNCTION app.trap() OWNER TO postgres',
				'ALTER FUNCTION app.note(text) OWNER TO postgres',
				'REASSIGN OWNED BY app TO postgres'
			],
			gains => qr/code of app ran as/);
	}
}

# A foreign key to our table runs what hangs on the attacker's own.  What comes
# after that is, in PostgreSQL, run as whoever wrote to ours.
my @child = (
	q{INSERT INTO app.child VALUES ('honest over', '')},
	'ALTER TABLE app.child ADD FOREIGN KEY (key, scope) REFERENCES idem.idempotency_keys ON DELETE CASCADE');
my %children = (
	'with a trigger' => [
		'CREATE TABLE app.child (key text, scope text)',
		'CREATE TRIGGER trap AFTER DELETE ON app.child FOR EACH ROW EXECUTE FUNCTION app.trap()'
	],
	'with a trigger for each statement' => [
		'CREATE TABLE app.child (key text, scope text)',
		'CREATE TRIGGER trap AFTER DELETE ON app.child FOR EACH STATEMENT EXECUTE FUNCTION app.trap()'
	],
	'with a deferred trigger' => [
		'CREATE TABLE app.child (key text, scope text)',
		'CREATE CONSTRAINT TRIGGER trap AFTER DELETE ON app.child DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.trap()'
	],
	'with a trigger on a partition' => [
		'CREATE TABLE app.child (key text, scope text) PARTITION BY LIST (scope)',
		q{CREATE TABLE app.part PARTITION OF app.child FOR VALUES IN ('')},
		'CREATE TRIGGER trap AFTER DELETE ON app.part FOR EACH ROW EXECUTE FUNCTION app.trap()'
	],
	'with a rule that fires triggers' => [
		'CREATE TABLE app.child (key text, scope text)',
		'CREATE TABLE app.other (key text)',
		'CREATE RULE more AS ON DELETE TO app.child DO ALSO INSERT INTO app.other VALUES (OLD.key)',
		'CREATE TRIGGER trap AFTER INSERT ON app.other FOR EACH ROW EXECUTE FUNCTION app.trap()'
	],
	'with a grandchild' => [
		'CREATE TABLE app.child (key text, scope text, UNIQUE (scope))',
		'CREATE TABLE app.grandchild (scope text REFERENCES app.child (scope) ON DELETE CASCADE)',
		'CREATE TRIGGER trap AFTER DELETE ON app.grandchild FOR EACH ROW EXECUTE FUNCTION app.trap()'
	]);
foreach my $child (sort keys %children)
{
	attack(
		"foreign key that cascades to a table $child",
		given => \@given,
		does => [
			@for_the_sweep,
			@{ $children{$child} },
			@child,
			$child eq 'with a grandchild' ? q{INSERT INTO app.grandchild VALUES ('')} : ()
		],
		others => $writers{idempotency_keys}{'the sweep'},
		weakened => [
			'ALTER FUNCTION app.trap() OWNER TO postgres',
			$child =~ /rule/ ? 'ALTER TABLE app.child OWNER TO postgres' : ()
		],
		gains => $by_writer ? qr/code of app ran as/ : undef);
}
# a deferrable constraint is looked at again afterwards, and so are its expressions
attack(
	'foreign key with an exclusion constraint behind it',
	given => \@given,
	does => [
		@for_the_sweep,
		q{CREATE FUNCTION app.expression(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM app.note('expression'); RETURN $1; END $$},
		"CREATE TABLE app.child (key text DEFAULT 'honest done', scope text, EXCLUDE USING btree (app.expression(key) WITH =) DEFERRABLE INITIALLY DEFERRED, FOREIGN KEY (key, scope) REFERENCES idem.idempotency_keys ON DELETE SET DEFAULT (key))",
		q{INSERT INTO app.child VALUES ('honest over', ''), ('honest done', '')}
	],
	others => $writers{idempotency_keys}{'the sweep'},
	weakened => ['ALTER FUNCTION app.expression(text) OWNER TO postgres'],
	gains => $by_writer ? qr/code of app ran as pg_database_owner/ : undef);
attack(
	'foreign key to the registry that cascades',
	given => \@given,
	does => [
		'CREATE TABLE app.child (tool text REFERENCES idem.idem_tools ON DELETE CASCADE)',
		q{INSERT INTO app.child VALUES ('honest tool')},
		'CREATE TRIGGER trap AFTER DELETE ON app.child FOR EACH ROW EXECUTE FUNCTION app.trap()'
	],
	others => $writers{idem_tools}{'an operator who unregisters'},
	weakened => ['ALTER FUNCTION app.trap() OWNER TO postgres'],
	gains => $by_writer ? qr/code of app ran as pg_database_owner/ : undef);
attack(
	'foreign key with a rule behind it',
	given => \@given,
	does => [
		@for_the_sweep,
		'CREATE TABLE app.child (key text, scope text)',
		q{CREATE RULE trap AS ON DELETE TO app.child DO ALSO SELECT app.note('rule')},
		@child
	],
	others => $writers{idempotency_keys}{'the sweep'},
	weakened => ['ALTER TABLE app.child OWNER TO postgres'],
	gains => qr/role app: f.* became t/);
attack(
	'foreign key that sets a default',
	given => \@given,
	does => [
		@for_the_sweep,
		q{CREATE FUNCTION app.value() RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM app.note('default'); RETURN NULL; END $$},
		'CREATE TABLE app.child (key text DEFAULT app.value(), scope text, FOREIGN KEY (key, scope) REFERENCES idem.idempotency_keys ON DELETE SET DEFAULT)',
		q{INSERT INTO app.child VALUES ('honest over', '')}
	],
	others => $writers{idempotency_keys}{'the sweep'},
	weakened => ['ALTER TABLE app.child OWNER TO postgres'],
	gains => qr/role app: f.* became t/);

# PostgreSQL checks a foreign key as the owner of the table that it refers to,
# casts included: REFERENCES is the owner's power, on any table, and we leave it
# to nobody.  (18 wants both columns to have a collation, which only PostgreSQL's
# own types can have.)
attack(
	'foreign key with a cast',
	weak => ['GRANT REFERENCES ON idem.idempotency_keys TO app'],
	does => [
		q{SELECT FROM idem.idem_reserve('honest')},
		q{CREATE TYPE app.mood AS ENUM ('honest')},
		q{CREATE FUNCTION app.cast(app.mood) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM app.note('cast'); RETURN 'honest'; END $$},
		'CREATE CAST (app.mood AS text) WITH FUNCTION app.cast(app.mood) AS IMPLICIT',
		'CREATE TABLE app.child (key app.mood, scope text, FOREIGN KEY (key, scope) REFERENCES idem.idempotency_keys)',
		q{INSERT INTO app.child VALUES ('honest', '')}
	],
	gains => $by_writer ? qr/code of app ran as pg_database_owner/ : undef);
done_testing();
