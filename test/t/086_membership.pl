# What a membership gives: on 15 every membership counts; since 16 one that
# neither inherits nor may SET ROLE gives nothing, ADMIN OPTION or not.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Attack;
use Test::More;

my $node = start_arena('membership');
my $options = $node->pg_version >= 16;

# A membership: how it is granted, and whether app may then act for victim
my @memberships =
  $options
  ? (
	[ 'WITH INHERIT FALSE, SET FALSE', 0 ],
	[ 'WITH ADMIN TRUE, INHERIT FALSE, SET FALSE', 0 ],
	[ 'WITH INHERIT TRUE, SET FALSE', 1 ],
	[ 'WITH INHERIT FALSE, SET TRUE', 1 ],
	[ '', 1 ])
  : ([ '', 1 ], [ 'WITH ADMIN OPTION', 1 ]);

# All ways to a key of victim's.  What is told of it has its result in it.
my @reads = (
	q{SELECT result FROM idem.idem_reserve('treasure kept')},
	q{SELECT result FROM idem.idem_lookup('treasure kept')},
	q{SELECT result FROM idem.idempotency_keys WHERE key = 'treasure kept'},
	q{SELECT idem.idem_may_act('victim')},
	q{SET idem_tool.owner = 'victim'; SELECT status FROM idem.idem_reserve('honest 1'); RESET idem_tool.owner},
	q{SELECT idem.idem_extend('treasure open', token => 2) IS NOT NULL});
my @may = ('"treasure"', '"treasure"', '"treasure"', 't', 'reserved', 't');
my @may_not = ('42501', '42501', '', 'f', '42501', '42501');

sub heard_by_app
{
	my ($database) = @_;
	my $app = as_role($database, 'app');

	return join("\n",
		map { my $answer = $app->try($_); $app->try('RESET idem_tool.owner'); $answer } @reads);
}

foreach my $inherit ('INHERIT', 'NOINHERIT')
{
	foreach my $membership (@memberships)
	{
		my ($how, $counts) = @$membership;
		my $database = new_arena();
		my $superuser = as_role($database);
		my $name = "$inherit, GRANT victim TO app $how";

		$superuser->query($_)
		  foreach "ALTER ROLE app $inherit",
		  'GRANT SELECT ON idem.idempotency_keys TO app';
		is(heard_by_app($database), join("\n", @may_not), "$name: before, nothing");
		$superuser->query("GRANT victim TO app $how");
		is(heard_by_app($database), join("\n", $counts ? @may : @may_not), $name);
		$superuser->query($_)
		  foreach 'REVOKE victim FROM app', 'ALTER ROLE app INHERIT';
		leave_arena($database);
	}
}

# By way of another role, the weakest link decides
if ($options)
{
	my $database = new_arena();
	my $superuser = as_role($database);

	$superuser->query($_)
	  foreach 'CREATE ROLE between', 'GRANT SELECT ON idem.idempotency_keys TO app',
	  'GRANT victim TO between WITH INHERIT FALSE, SET FALSE', 'GRANT between TO app';
	is(heard_by_app($database), join("\n", @may_not), 'one link gives nothing');
	$superuser->query('GRANT victim TO between WITH INHERIT TRUE');
	is(heard_by_app($database), join("\n", @may), 'both links do');
	$superuser->query('DROP ROLE between');
	leave_arena($database);
}

# A superuser is no member of anything, where others are believed
my $database = new_arena();
my $superuser = as_role($database);
foreach my $call (
	q{SELECT * FROM idem.idem_reserve('treasure kept')},
	q{SELECT idem.idem_run('treasure kept', 'shared.same(jsonb)')},
	q{SELECT idem.idem_call('honest write', '{}', 'treasure kept')},
	q{SELECT * FROM idem.idem_begin('honest tool', '{}', 'treasure kept')})
{
	$superuser->query(q{SELECT idem.idem_register('honest write', 'shared.same(jsonb)')});
	is($superuser->try($call), '42501', "a superuser has no right to: $call");
}
is($superuser->try(q{SET idem_tool.owner = 'victim'; SELECT FROM idem.idem_reserve('honest')}),
	'42501', 'nor to reserve for others');
$superuser->run('RESET idem_tool.owner');
is($superuser->query(q{SELECT result FROM idem.idem_lookup('treasure kept')}),
	'"treasure"', 'he looks it up');
$superuser->query('GRANT victim TO CURRENT_USER');
is($superuser->query(q{SELECT result FROM idem.idem_reserve('treasure kept')}),
	'"treasure"', 'a membership is one for him, too');
$superuser->query('REVOKE victim FROM CURRENT_USER');
leave_arena($database);

# A role that was dropped and made anew has the name that owns the keys: the
# handbook has that changed first.  Until it is, its keys are nobody's.
$database = new_arena();
$superuser = as_role($database);
$superuser->query($_)
  foreach q{CREATE ROLE passing LOGIN}, q{SELECT idem.idem_grant('passing')};
as_role($database, 'passing')->query(q{SELECT FROM idem.idem_reserve('left behind')});
$superuser->query($_) foreach 'DROP OWNED BY passing', 'DROP ROLE passing';
is(as_role($database, 'app')->try(q{SELECT * FROM idem.idem_lookup('left behind')}),
	'42501', 'keys of a role that is gone are not for callers');
is(as_role($database, 'app')->try(q{SELECT * FROM idem.idem_reserve('left behind')}),
	'42501', '... in no way');
like(as_role($database, 'ops')->try(q{SELECT status FROM idem.idem_lookup('left behind')}),
	qr/in_progress/, '... but for operators');
leave_arena($database);
done_testing();
