// JDBC

import java.sql.*;
import java.util.Properties;
import org.postgresql.util.PGInterval;
import org.postgresql.util.PGobject;

public class Probe {
	static final String NAME = "JDBC";
	static String url;
	static Connection db;

	static Connection connect() throws SQLException {
		Properties options = new Properties();
		options.setProperty("user", System.getenv("PGUSER"));
		options.setProperty("password", System.getenv().getOrDefault("PGPASSWORD", ""));
		return DriverManager.getConnection(url, options);
	}

	static void row(Object... cells) {
		StringBuilder row = new StringBuilder("|");
		for (Object cell : cells)
			row.append(" ").append(cell).append(" |");
		System.out.println(row);
	}

	/** The first column of the first row, or the error's SQLSTATE. */
	static Object outcome(Connection on, String query, Object... arguments) {
		try (PreparedStatement statement = on.prepareStatement(query)) {
			for (int i = 0; i < arguments.length; i++)
				if (arguments[i] instanceof String)
					statement.setString(i + 1, (String) arguments[i]);
				else
					statement.setObject(i + 1, arguments[i]);
			ResultSet result = statement.executeQuery();
			result.next();
			return result.getObject(1);
		} catch (SQLException error) {
			// the driver's own: no such type, a parameter it cannot send
			return error.getSQLState().equals("07006") || error.getSQLState().equals("08")
				? "the driver refuses" : error.getSQLState();
		}
	}

	static String seen(String key) {
		return outcome(db, "SELECT count(*) FROM idem_lookup(?)", key).equals(0L)
			? "not committed" : "committed";
	}

	static Object result(String key, Object value) {
		Object token = outcome(db, "SELECT token FROM idem_reserve(?)", key);
		Object said = outcome(db, "SELECT idem_complete(?, ?, ?)", key, value, token);
		return !said.equals(true) ? said : outcome(db,
			"SELECT coalesce('`' || result::text || '`', 'SQL NULL') FROM idem_lookup(?)", key);
	}

	static Object lease(String key, Object ttl) {
		Object said = outcome(db, "SELECT status FROM idem_reserve(?, ?)", key, ttl);
		return !said.equals("reserved") ? said : outcome(db,
			"SELECT extract(epoch FROM expires_at - reserved_at)::integer || ' s' FROM idem_lookup(?)", key);
	}

	/** The result of a key that is done. */
	static Object done(String key) {
		outcome(db, "SELECT idem_complete(?, '1', token) FROM idem_reserve(?)", key, key);
		return outcome(db, "SELECT result FROM idem_reserve(?)", key);
	}

	static PGobject jsonb(String text) throws SQLException {
		PGobject value = new PGobject();
		value.setType("jsonb");
		value.setValue(text);
		return value;
	}

	public static void main(String[] arguments) throws Exception {
		// which speaks TCP only
		url = "jdbc:postgresql://127.0.0.1:" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE");
		System.out.println("# " + NAME + " " + org.postgresql.util.DriverInfo.DRIVER_VERSION);
		db = connect();

		outcome(db, "SELECT status FROM idem_reserve('jd:plain')");
		Object alone = outcome(db, "SELECT status FROM idem_reserve('jd:two', two_phase => true)");
		Connection transaction = connect();
		transaction.setAutoCommit(false);
		row("transactions", NAME, seen("jd:plain"), alone,
			outcome(transaction, "SELECT status FROM idem_reserve('jd:block', two_phase => true)"),
			"`setAutoCommit(true)`, which frameworks turn off");
		transaction.rollback();

		row("jsonb", NAME, result("jd:map", java.util.Map.of("a", 1)),
			result("jd:array", db.createArrayOf("int", new Object[] {1, 2})),
			result("jd:text", "ok"), result("jd:nul", jsonb("\"a\\u0000b\"")),
			done("jd:ok").getClass().getSimpleName(),
			"`PGobject` of type jsonb");

		// setString is a varchar to the server; the token is a null that looks like 0
		ResultSet late = db.createStatement().executeQuery("SELECT token FROM idem_reserve('jd:ok')");
		late.next();
		long token = late.getLong(1);
		Object zero = outcome(db, "SELECT idem_complete('jd:held', NULL, ?)", token);
		outcome(db, "SELECT status FROM idem_reserve('jd:held')");
		if (!zero.equals("IK003") || !outcome(db, "SELECT idem_complete('jd:held', NULL, ?)", token).equals("IK003"))
			throw new Exception("a NULL token acts: " + zero);
		row("times", NAME, "`PGInterval`", lease("jd:5min", new PGInterval(0, 0, 0, 0, 5, 0)),
			lease("jd:300", 300), lease("jd:string", "5 min"), "long; `getLong` of NULL is 0: IK003",
			outcome(db, "SELECT idem_complete('jd:held', NULL, ?)", (Object) null));

		// a query time-out during wait
		outcome(transaction, "SELECT status FROM idem_reserve('jd:late')");
		String said;
		try (Statement statement = db.createStatement()) {
			statement.setQueryTimeout(1);
			statement.executeQuery("SELECT status FROM idem_reserve('jd:late', wait => '1 min')");
			said = "?";
		} catch (SQLException error) {
			said = error.getSQLState();
		}
		transaction.rollback();
		row("time-outs", NAME, "`setQueryTimeout`", said, seen("jd:late"));
	}
}
