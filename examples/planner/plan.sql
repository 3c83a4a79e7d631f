-- What is to be done, each step with its key, before anything is done
CREATE TABLE plan (
	run text,
	step integer,
	key text NOT NULL UNIQUE,
	tool text NOT NULL,
	args jsonb NOT NULL,
	PRIMARY KEY (run, step)
);
