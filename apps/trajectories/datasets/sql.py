"""What is done to many rows at once inside the database, and the triggers that keep snapshots as they were.

The room above owns judgements; what a snapshot freezes of them is read by the names of its tables, in the one statement
that sees everything at one moment.
"""

COPY_MEMBERS = """
    INSERT INTO trajectories_snapshotentry (
        snapshot_id, trajectory_id, reward, step_rewards, n_steps, end_index, n_prompt_tokens, n_completion_tokens,
        content, judged
    )
    SELECT %s, trajectory.id, trajectory.reward, coalesce(steps.rewards, '{}'), steps.n, steps.end_index,
        steps.n_prompt_tokens, steps.n_completion_tokens, steps.content,
        jsonb_strip_nulls(jsonb_build_object(
            'preference', pairs.all_ids, 'sft', pairs.corrections, 'hints', hints.ids, 'ends', pairs.ends
        ))
    FROM trajectories_datasetmember member
    JOIN trajectories_trajectory trajectory ON trajectory.id = member.trajectory_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS n,
            coalesce(max(step.index) + 1, 0) AS end_index,
            coalesce(sum(step.n_prompt_tokens), 0) AS n_prompt_tokens,
            coalesce(sum(step.n_completion_tokens), 0) AS n_completion_tokens,
            jsonb_object_agg(step.index, step.reward) FILTER (WHERE step.reward IS NOT NULL) AS rewards,
            encode(sha256(convert_to(coalesce(string_agg(step.id, ',' ORDER BY step.index), ''), 'UTF8')), 'hex')
                AS content
        FROM trajectories_step step
        WHERE step.trajectory_id = trajectory.id
    ) steps
    CROSS JOIN LATERAL (
        SELECT jsonb_agg(pair.id ORDER BY pair.id) AS all_ids,
            jsonb_agg(pair.id ORDER BY pair.id) FILTER (WHERE pair.kind = 'correction') AS corrections,
            jsonb_object_agg(pair.id, (
                SELECT coalesce(max(step.index) + 1, 0)
                FROM trajectories_step step WHERE step.trajectory_id = pair.rejected_trajectory_id
            )) FILTER (WHERE pair.rejected_trajectory_id IS NOT NULL) AS ends
        FROM feedback_preference pair
        WHERE pair.trajectory_id = trajectory.id AND pair.superseded_by_id IS NULL AND NOT pair.is_undo
            AND NOT pair.is_tie
    ) pairs
    CROSS JOIN LATERAL (
        SELECT jsonb_agg(label.id ORDER BY label.id) AS ids
        FROM feedback_label label
        WHERE label.trajectory_id = trajectory.id AND label.superseded_by_id IS NULL AND NOT label.is_undo
            AND label.field = 'hint' AND label.step_id IS NOT NULL AND label.text <> ''
    ) hints
    WHERE member.dataset_id = %s AND trajectory.deleted_at IS NULL
"""

SUM_ENTRIES = """
    UPDATE trajectories_snapshot snapshot
    SET checksum = %s,
        n_trajectories = entries.n,
        n_rewarded = entries.n_rewarded,
        n_steps = entries.n_steps,
        n_prompt_tokens = entries.n_prompt_tokens,
        n_completion_tokens = entries.n_completion_tokens,
        mean_reward = entries.mean_reward
    FROM (
        SELECT count(*) AS n,
            count(reward) AS n_rewarded,
            avg(reward) AS mean_reward,
            sum(n_steps) AS n_steps,
            sum(n_prompt_tokens) AS n_prompt_tokens,
            sum(n_completion_tokens) AS n_completion_tokens,
            min(snapshot_id) AS snapshot_id
        FROM trajectories_snapshotentry
        WHERE snapshot_id = %s
    ) entries
    WHERE snapshot.id = entries.snapshot_id
"""

CREATE_TRIGGERS = """
    CREATE FUNCTION trajectories_count_members() RETURNS trigger AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            UPDATE trajectories_dataset dataset SET n_trajectories = n_trajectories + changed.n
            FROM (SELECT dataset_id, count(*) AS n FROM fresh GROUP BY dataset_id) changed
            WHERE dataset.id = changed.dataset_id;
        ELSE
            UPDATE trajectories_dataset dataset SET n_trajectories = n_trajectories - changed.n
            FROM (SELECT dataset_id, count(*) AS n FROM gone GROUP BY dataset_id) changed
            WHERE dataset.id = changed.dataset_id;
        END IF;
        RETURN NULL;
    END
    $$ LANGUAGE plpgsql;
    CREATE TRIGGER members_are_counted_in AFTER INSERT ON trajectories_datasetmember
        REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION trajectories_count_members();
    CREATE TRIGGER members_are_counted_out AFTER DELETE ON trajectories_datasetmember
        REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION trajectories_count_members();

    CREATE FUNCTION trajectories_keep_snapshot() RETURNS trigger AS $$
    BEGIN
        IF OLD.checksum <> '' THEN
            RAISE EXCEPTION 'a snapshot never changes: %', OLD.id
                USING ERRCODE = 'check_violation', CONSTRAINT = 'snapshot_is_immutable';
        END IF;
        RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
    END
    $$ LANGUAGE plpgsql;
    CREATE TRIGGER snapshot_is_immutable BEFORE UPDATE OR DELETE ON trajectories_snapshot
        FOR EACH ROW EXECUTE FUNCTION trajectories_keep_snapshot();

    CREATE FUNCTION trajectories_keep_entries() RETURNS trigger AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            IF NOT EXISTS (
                SELECT FROM fresh JOIN trajectories_snapshot snapshot ON snapshot.id = fresh.snapshot_id
                WHERE snapshot.checksum <> ''
            ) THEN
                RETURN NULL;
            END IF;
        ELSIF NOT EXISTS (SELECT FROM gone) THEN
            RETURN NULL;
        END IF;
        RAISE EXCEPTION 'what a snapshot holds never changes'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'snapshot_is_immutable';
    END
    $$ LANGUAGE plpgsql;
    CREATE TRIGGER entries_are_not_added AFTER INSERT ON trajectories_snapshotentry
        REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION trajectories_keep_entries();
    CREATE TRIGGER entries_are_not_changed AFTER UPDATE ON trajectories_snapshotentry
        REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION trajectories_keep_entries();
    CREATE TRIGGER entries_are_not_deleted AFTER DELETE ON trajectories_snapshotentry
        REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION trajectories_keep_entries();
"""

DROP_TRIGGERS = """
    DROP TRIGGER members_are_counted_in ON trajectories_datasetmember;
    DROP TRIGGER members_are_counted_out ON trajectories_datasetmember;
    DROP TRIGGER snapshot_is_immutable ON trajectories_snapshot;
    DROP TRIGGER entries_are_not_added ON trajectories_snapshotentry;
    DROP TRIGGER entries_are_not_changed ON trajectories_snapshotentry;
    DROP TRIGGER entries_are_not_deleted ON trajectories_snapshotentry;
    DROP FUNCTION trajectories_count_members();
    DROP FUNCTION trajectories_keep_snapshot();
    DROP FUNCTION trajectories_keep_entries();
"""

CREATE_EMPTYING_TRIGGERS = """
    CREATE FUNCTION trajectories_refuse_emptying() RETURNS trigger AS $$
    BEGIN
        RAISE EXCEPTION 'a snapshot never changes'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'snapshot_is_immutable';
    END
    $$ LANGUAGE plpgsql;
    CREATE TRIGGER snapshots_are_not_emptied BEFORE TRUNCATE ON trajectories_snapshot
        FOR EACH STATEMENT EXECUTE FUNCTION trajectories_refuse_emptying();
    CREATE TRIGGER entries_are_not_emptied BEFORE TRUNCATE ON trajectories_snapshotentry
        FOR EACH STATEMENT EXECUTE FUNCTION trajectories_refuse_emptying();
"""

DROP_EMPTYING_TRIGGERS = """
    DROP TRIGGER snapshots_are_not_emptied ON trajectories_snapshot;
    DROP TRIGGER entries_are_not_emptied ON trajectories_snapshotentry;
    DROP FUNCTION trajectories_refuse_emptying();
"""
