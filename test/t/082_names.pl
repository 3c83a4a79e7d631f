# Objects of the attacker's under names that others mean: overloads in the
# extension's schema, a schema of its old name, what stood there before the
# extension came, and the search_path.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Attack;
use Test::More;

my $node = start_arena('names');

# Functions of app's, in "schema", for each of the extension's in idem: for calls
# that leave arguments out, and with text where ours take something else
sub overloads
{
	my ($schema, $kind) = @_;

	return <<"END";
DO \$\$
DECLARE
	f record;
	arguments text;
BEGIN
	FOR f IN
		SELECT proname, proargtypes, count
		FROM pg_proc JOIN pg_namespace AS n ON n.oid = pronamespace
		CROSS JOIN generate_series(0, pronargs) AS count
		WHERE nspname LIKE 'idem%' AND proname LIKE 'idem%' AND proowner <> 'app'::regrole
	LOOP
		SELECT coalesce(string_agg(CASE '$kind' WHEN 'text' THEN 'text' ELSE format_type(t, NULL) END, ', ' ORDER BY n), '')
			INTO arguments
			FROM unnest(f.proargtypes) WITH ORDINALITY AS a (t, n)
			WHERE n <= f.count;
		BEGIN
			EXECUTE format('CREATE FUNCTION $schema.%I(%s) RETURNS text LANGUAGE plpgsql AS %L',
				f.proname, arguments,
				format('BEGIN PERFORM app.note(%L); RETURN NULL; END', f.proname));
		EXCEPTION WHEN duplicate_function THEN
			NULL;
		END;
	END LOOP;
END;
\$\$
END
}

# Operators and functions that stand in for PostgreSQL's, where a search_path
# puts "schema" first
sub shadows
{
	my ($schema) = @_;

	return (
		(
			map {
				my ($operator, $name, $left, $right, $result) = @$_;
				(
					"CREATE FUNCTION $schema.$name($left, $right) RETURNS $result LANGUAGE plpgsql AS 'BEGIN PERFORM app.note(''$name''); RETURN NULL; END'",
					"CREATE OPERATOR $schema.$operator (FUNCTION = $schema.$name, LEFTARG = $left, RIGHTARG = $right)"
				)
			} (
				[ '=', 'eq_text', 'text', 'text', 'boolean' ],
				[ '=', 'eq_name', 'name', 'text', 'boolean' ],
				[ '=', 'eq_oid', 'oid', 'oid', 'boolean' ],
				[ '=', 'eq_tid', 'tid', 'tid', 'boolean' ],
				[ '<', 'lt_time', 'timestamptz', 'timestamptz', 'boolean' ],
				[ '<=', 'le_time', 'timestamptz', 'timestamptz', 'boolean' ],
				[ '-', 'minus_time', 'timestamptz', 'timestamptz', 'interval' ],
				[ '||', 'concat_text', 'text', 'text', 'text' ],
				[ '~', 'match_text', 'text', 'text', 'boolean' ])
		),
		map {
			"CREATE FUNCTION $schema.$_ RETURNS text LANGUAGE plpgsql AS 'BEGIN PERFORM app.note(''shadow''); RETURN NULL; END'"
		} (
			'format(text, text)', 'format(text, text, text, text, text)',
			'clock_timestamp()', 'make_interval(integer)', 'now()', 'set_config(text, text, boolean)',
			'aclexplode(aclitem[])', 'acldefault("char", oid)'));
}

# What others do, all arguments given, as in SQL bodies that mean ours
sub uses
{
	my ($idem) = @_;

	return (
		[
			'ops',
			"SELECT $idem.idem_register('honest'::text, 'shared.same(jsonb)'::regprocedure, 'read'::text, '1 h'::interval, '1 h'::interval, '1 h'::interval, NULL::interval, 'x'::text)"
		],
		[
			'victim',
			"SELECT $idem.idem_call('honest'::text, '{}'::jsonb, NULL::text, '0'::interval, NULL::text)"
		],
		[ 'ops', "SELECT $idem.idem_unregister('honest'::text)" ],
		[
			'ops',
			"SELECT $idem.idem_resolve('honest'::text, 'done'::text, '1'::jsonb, NULL::interval, false, true, NULL::name, NULL::text)"
		],
		[ 'ops', "SELECT $idem.idem_forget('honest'::text, NULL::text)" ],
		[ 'ops', "SELECT * FROM $idem.idem_sweep()" ],
		[ 'ops', "TABLE $idem.idem_stuck" ],
		[ 'ops', "TABLE $idem.idempotency_keys" ],
		[ 'ops', "TABLE $idem.idem_tools" ],
		[ 'ops', "TABLE $idem.idem_audit" ],
		[ 'ops', "TABLE $idem.idem_stats" ],
		[
			'victim',
			"SELECT $idem.idem_complete('honest 2'::text, '1'::jsonb, token, NULL::interval, NULL::text) FROM $idem.idem_reserve('honest 2'::text, NULL::interval, '1'::jsonb, '1 s'::interval, NULL::interval, NULL::text, NULL::text, NULL::boolean)"
		],
		[ undef, "SELECT $idem.idem_grant('nobody'::regrole, 'monitor'::text)" ],
		[ undef, "SELECT $idem.idem_revoke('nobody'::regrole, 'monitor'::text)" ]);
}

# A function as it would be if it named what it calls
sub by_name
{
	my ($idem, $call, $path) = @_;

	return "CREATE OR REPLACE FUNCTION $idem.idem_unregister(tool text) RETURNS boolean LANGUAGE plpgsql $path AS \$\$ BEGIN PERFORM $call; RETURN true; END \$\$";
}

# so that granting gives nothing that the judge would wonder at
my $known = 'GRANT USAGE ON SCHEMA idem TO nobody';

my %call = (
	'text' => q{idem.idem_call_key(tool, '{}')},
	'fewer' => 'idem.idem_call_key(tool)');
foreach my $kind (sort keys %call)
{
	attack(
		"overloads in the schema, $kind",
		given => [ $known, 'GRANT CREATE ON SCHEMA idem TO app' ],
		does => [ overloads('idem', $kind) ],
		others => [ uses('idem') ],
		weak => [ by_name('idem', $call{$kind}, '') ],
		gains => qr/code of app ran as ops/);

	# the schema's name is free again
	attack(
		"a schema of the old name, $kind",
		given => [
			$known,
			'ALTER SCHEMA idem RENAME TO idem2',
			'CREATE SCHEMA idem AUTHORIZATION app',
			'GRANT USAGE ON SCHEMA idem TO PUBLIC'
		],
		does => [
			overloads('idem', $kind),
			'CREATE TABLE idem.idem_tools (tool text)',
			'CREATE TABLE idem.idempotency_keys (key text)',
			'CREATE TABLE idem.idem_audit (key text)',
			'CREATE TRIGGER trap BEFORE INSERT OR DELETE ON idem.idem_tools FOR EACH STATEMENT EXECUTE FUNCTION app.trap()'
		],
		others => [ uses('idem2') ],
		weak => [ by_name('idem2', $call{$kind}, '') ],
		gains => qr/code of app ran as ops/);
}

# The search_path of who calls, and his temporary objects, which are his own
my @path = map { [ $_->[0], "SET search_path = app, pg_temp, pg_catalog; $_->[1]" ] } uses('idem');
attack(
	'shadows in the search_path',
	given => [$known],
	does => [ shadows('app') ],
	others => \@path,
	weak => [ by_name('idem', q{1 WHERE tool = 'x'}, '') ],
	gains => qr/code of app ran as ops/);
attack(
	'shadows in the schema',
	given => [ $known, 'GRANT CREATE ON SCHEMA idem TO app' ],
	does => [ shadows('idem') ],
	others => [ uses('idem') ],
	weak => [ by_name('idem', q{1 WHERE tool = 'x'}, 'SET search_path = idem, pg_catalog') ],
	gains => qr/code of app ran as ops/);

# What an operator's own session has in pg_temp is his, but a definer's function
# that he calls is not; here app plants, and an operator's function is called
attack(
	'temporary objects',
	given => [
		q{CREATE FUNCTION public.honest() RETURNS boolean LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$ SELECT idem.idem_unregister('honest'::text) $$},
		'ALTER FUNCTION public.honest() OWNER TO ops',
		'GRANT USAGE ON SCHEMA public TO app'
	],
	does => [
		'BEGIN',
		(map { s/app\.(?!note)/pg_temp./gr } shadows('app')),
		overloads('pg_temp', 'text'),
		'CREATE TEMP TABLE idem_tools (tool text)',
		'CREATE TEMP TABLE idempotency_keys (key text)',
		'SELECT public.honest()',
		'COMMIT'
	],
	weak => [ by_name('idem', q{pg_temp.idem_unregister('x')}, '') ],
	gains => qr/code of app ran as ops/);

my @room = (
	'CREATE SCHEMA idem', 'GRANT CREATE, USAGE ON SCHEMA idem TO app',
	'GRANT USAGE ON SCHEMA idem TO pg_database_owner');

# What stands in the schema before the extension comes: CREATE EXTENSION may
# refuse to work, but runs none of it
my @names = (
	'CREATE TYPE idem.idem_answer AS (status text)',
	'CREATE TABLE idem.idempotency_keys (key text)',
	q{CREATE FUNCTION idem.idem_wake_worker() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN app.note('wake'); END $$},
	q{CREATE FUNCTION idem.idem_stats_read() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN app.note('stats'); END $$},
	q{CREATE FUNCTION idem.idem_may_act(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN app.note('may'); END $$},
	q{CREATE FUNCTION idem.pg_extension_config_dump(regclass, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM app.note('dump'); END $$},
	q{CREATE FUNCTION idem.idem_set_privileges(regrole, text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM app.note('grant'); END $$},
	q{CREATE DOMAIN idem.text AS pg_catalog.text CHECK (app.note('text'))},
	q{CREATE DOMAIN idem.timestamptz AS pg_catalog.timestamptz CHECK (app.note('timestamptz'))},
	shadows('idem'));
foreach my $plant (@names[ 0 .. 4 ])
{
	my $database = new_arena('bare');

	is( join("\n",
			gains_of(
				$database, 0,
				given => \@room,
				does => $plant,
				others => [ [ undef, 'CREATE EXTENSION idem_tool SCHEMA idem' ] ])),
		'',
		$plant =~ s/ (AS|RETURNS) .*| \(.*//rs . ': gains nothing');
	leave_arena($database);
}
attack(
	'CREATE EXTENSION after all that does not clash',
	template => 'bare',
	given => \@room,
	does => [ @names[ 5 .. $#names ] ],
	others => [ [ undef, 'CREATE EXTENSION idem_tool SCHEMA idem' ] ],
	weakened => [q{SET search_path = idem, pg_catalog; SELECT format('a'::text, 'b'::text)}],
	gains => qr/code of app ran as postgres/);

# The same by the owner of the database, who creates the extension himself: its
# script runs as a superuser
my @mine = map { s/\bapp\./dbo./gr } @names;
foreach my $plants ((map { [$_] } @mine[ 0 .. 4 ]), [ @mine[ 5 .. $#mine ] ])
{
	attack(
		'the owner creates the extension after ' . $plants->[-1] =~ s/ (AS|RETURNS) .*| \(.*//rs,
		by => 'dbo',
		template => 'bare',
		does => [
			'CREATE SCHEMA idem',
			'ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC',
			'SET search_path = idem, dbo, pg_temp, pg_catalog',
			(map { s/idem\./pg_temp./gr } @$plants),
			@$plants,
			'CREATE EXTENSION idem_tool SCHEMA idem',
			'DROP EXTENSION idem_tool'
		],
		weakened => [q{SELECT dbo.note('control')}],
		gains => qr/code of dbo ran as postgres/);
}
done_testing();
